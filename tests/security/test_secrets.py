"""A34, A13, A37: secrets do not leak, no data is loaded as code, and an image's size is checked before it is decoded."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path

import httpx2
import psutil
import pytest

from penstock.embedded.server import EmbeddedServer
from penstock.settings.tables import Settings
from tests.acceptance.gateway_process import gateway_process
from tests.acceptance.test_cli import clean_environment
from tests.command import called_here
from tests.eventually import eventually
from tests.security.keyed import ALICE, BOB, KEYS, MODELS, OPERATIONS, SUBMITS, filled, keyed_gateway, send

ROOT = Path(__file__).parents[2]
CANARY = "canary-7f3a91"


def test_no_secret_reaches_the_log_a_traceback_or_an_answer(tmp_path: Path) -> None:
    log, answers = tmp_path / "gateway.log", []
    wrong = {"authorization": f"Bearer alice.{CANARY}-guess"}
    with EmbeddedServer(tmp_path / "state", fsync="everysec", users=True) as server:
        passwords = json.loads((server.socket_path.parent / "passwords.json").read_text())
        with log.open("wb") as output, keyed_gateway(server.gateway_url, tmp_path, log=output) as client:
            answers += attack(client, wrong)
            server.stop()
            answers += attack(client, wrong)
            eventually(lambda: "store_unavailable" in log.read_text())
    written = log.read_text() + "".join(answers)
    secrets = [CANARY, server.gateway_url, *passwords.values(), *(key.secret for key in KEYS)]
    assert [secret for secret in secrets if secret in written] == []
    assert not re.search(r"Traceback|File \"/", "".join(answers))


def attack(client: httpx2.Client, wrong: dict[str, str]) -> list[str]:
    """Calls every route, with right and wrong keys and with secrets in every field that a caller can fill."""
    answers = [client.get("/v1/models", headers=wrong).text for _ in range(25)]
    for method, path in OPERATIONS:
        for headers in (ALICE.header, {**ALICE.header, "idempotency-key": CANARY, "x-request-id": "x y"}):
            answers.append(send(client, method, path, key=BOB, headers={"x-api-key": CANARY, **headers}).text)
    for path in SUBMITS:
        headers = {**ALICE.header, "content-type": "application/json"}
        content = json.dumps({"x": CANARY * 9}).encode()
        answers.append(client.post(filled(path), headers=headers, content=content, params={"deadline_s": "0.2"}).text)
    client.get("/v1/jobs", params={"limit": "1", "api_key": CANARY}, headers=ALICE.header)
    return answers


def test_settings_do_not_show_secrets_when_they_are_printed(tmp_path: Path) -> None:
    env = {"PENSTOCK_REDIS_URL": f"redis://user:{CANARY}@127.0.0.1:1", "PENSTOCK_KEYS": ALICE.toml}
    settings = Settings.load(None, env)
    assert CANARY not in repr(settings)
    assert settings.keys[0].sha256 not in repr(settings)
    shown = called_here("config", env={**clean_environment(), **env}, cwd=tmp_path)
    assert shown.returncode == 0
    assert "alice" in shown.stdout
    assert not any(secret in shown.stdout for secret in (CANARY, ALICE.secret, settings.keys[0].sha256))


def test_no_secret_is_on_a_command_line(redis_url: str, tmp_path: Path) -> None:
    env = {"PENSTOCK_KEYS": ALICE.toml}
    with gateway_process(redis_url, tmp_path, models=MODELS, processes=2, env=env, cold=True) as client:
        family = [psutil.Process(client.process.pid), *psutil.Process(client.process.pid).children(recursive=True)]
        words = " ".join(" ".join(process.cmdline()) for process in family)
        assert len(family) == 3
        assert "sha256" not in words
        assert "redis" not in words
        assert "unix://" not in words


# The texts lack the brackets of a call, because `make check` searches this file too.
PLANTED = [
    "import pickle\npickle.load{}\n",
    "from pickle import loads\n",
    "import cloudpickle\n",
    "import marshal\nmarshal.loads{}\n",
    "import yaml\nyaml.load{}\n",
]
OPTIONS = [
    ("torch.load(path, weights_only={})", "False"),
    ("np.load(path, allow_pickle={})", "True"),
    ("yaml.unsafe_load{}", "(text)"),
    ("pickle.loads{}", "(data)"),
]


@pytest.mark.parametrize("source", PLANTED, ids=lambda source: source.splitlines()[0])
def test_make_check_finds_a_planted_reader_of_code(source: str) -> None:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--stdin-filename",
        str(ROOT / "broker" / "planted.py"),
        "-",
    ]
    planted = source.replace("{}", "('x')")
    done = subprocess.run(command, input=planted, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert re.search(r"S301|S302|S506|TID251", done.stdout)


@pytest.mark.parametrize(("line", "value"), OPTIONS)
def test_make_check_finds_the_options_that_switch_such_readers_on(line: str, value: str, tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(r"^UNSAFE := (.*)$", makefile, re.MULTILINE)
    assert found is not None
    assert "grep -rnE '$(UNSAFE)'" in makefile
    (tmp_path / "planted.py").write_text(line.format(value) + "\n")
    assert subprocess.run(["grep", "-rnE", found[1], str(tmp_path)], capture_output=True, check=False).returncode == 0
    (tmp_path / "planted.py").write_text("json.loads(data)\n")
    assert subprocess.run(["grep", "-rnE", found[1], str(tmp_path)], capture_output=True, check=False).returncode == 1


def bomb(width: int, height: int) -> bytes:
    """A PNG of `width` x `height` black pixels in a few KB."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([1, 0, 0, 0, 0])
    packer, rows = zlib.compressobj(9), io.BytesIO()
    for _ in range(height):
        rows.write(packer.compress(bytes(1 + (width + 7) // 8)))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows.getvalue() + packer.flush()) + chunk(b"IEND", b"")
    )


def test_image_bombs_are_refused_from_their_headers() -> None:
    pytest.importorskip("PIL")
    program = (
        "import resource, sys\n"
        "sys.path.insert(0, 'examples/digits')\n"
        "import handler\n"
        "from penstock import Failure\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for line in sys.stdin:\n"
        "    found = handler._pixels(bytes.fromhex(line))\n"
        "    assert isinstance(found, Failure) and 'the limits are' in str(found), found\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    bombs = [bomb(width, height) for width, height in ((20_000, 20_000), (20_000, 2), (2, 20_000), (16_385, 1))]
    assert max(map(len, bombs)) < 100_000
    data = "\n".join(data.hex() for data in bombs)
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16 * 1024, "KiB: decoded, the first would be 381 MiB"
