"""docs/reference/torchserve.md, "Moving, step by step": its commands, run in order on an archive of the stock archiver."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from penstock.loadtest.stack import free_port
from tests import archives
from tests.acceptance.test_cli import COMMAND, clean_environment
from tests.eventually import eventually
from tests.markdown import ROOT

HANDLER = "def handle(data, context):\n    return data and [{'got': row['body']} for row in data]\n"
_SECTION = (
    (ROOT / "docs" / "reference" / "torchserve.md").read_text().partition("## Moving, step by step")[2].partition("\n## ")[0]
)
STEPS = [
    [line.strip() for line in block.strip().splitlines()]
    for block in (part.partition("```")[0] for part in _SECTION.split("```bash\n")[1:])
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moving")
    (folder / "store").mkdir()
    (folder / "serve.py").write_text(HANDLER)
    archives.packed(folder / "store", "--model-name", "echo", "--version", "1.0", "--handler", "serve.py", folder=folder)
    return folder


@pytest.fixture(scope="module")
def ports(site: Path) -> Mapping[str, str]:
    """Free ports in the place of TorchServe's, which the page names."""
    found = {port: str(free_port()) for port in ("8080", "8081", "8082")}
    names = {"8080": "inference_address", "8081": "management_address", "8082": "metrics_address"}
    lines = [f"{name}=http://127.0.0.1:{found[port]}" for port, name in names.items()]
    (site / "config.properties").write_text("\n".join([*lines, "disable_token_authorization=true", ""]))
    return found


class Reader:
    """Somebody who types the commands of the page in one folder."""

    def __init__(self, site: Path, ports: Mapping[str, str]) -> None:
        self._site, self._ports = site, ports
        self._env = clean_environment() | {"PENSTOCK_URL": f"http://127.0.0.1:{ports['8080']}"}

    def types(self, line: str) -> str:
        done = subprocess.run(
            self._words(line), cwd=self._site, env=self._env, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{line}: {done.stdout} {done.stderr}"
        return done.stdout

    def _words(self, line: str) -> list[str]:
        for port, free in self._ports.items():
            line = line.replace(f"localhost:{port}", f"127.0.0.1:{free}")
        first, *rest = shlex.split(line)
        return [*COMMAND, *rest] if first == "penstock" else [first, "--silent", "--fail", *rest]

    @contextlib.contextmanager
    def leaves_running(self, line: str) -> Iterator[None]:
        with (self._site / "server.log").open("ab") as log:
            process = subprocess.Popen(self._words(line), cwd=self._site, env=self._env, stdout=log, stderr=log)
        try:
            eventually(lambda: self._is_ready(process), timeout_s=60.0)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        log = (self._site / "server.log").read_text()
        assert process.poll() is None, log
        return "is ready in" in log


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page asks with curl")
def test_each_step_of_the_page_does_what_it_says(site: Path, ports: Mapping[str, str]) -> None:
    look, serve, ask, show, new, keep = STEPS
    reader = Reader(site, ports)
    assert "[models.echo]" in reader.types(look[0])
    with reader.leaves_running(serve[0]):
        ping, prediction, description, metrics = map(reader.types, ask)
        assert json.loads(ping) == {"status": "Healthy"}
        assert json.loads(prediction) == {"got": {"a": 1}}
        assert json.loads(description)[0]["modelName"] == "echo"
        assert "ts_inference_requests_total" in metrics
        assert "echo" in reader.types(show[0])
        job = reader.types(new[0]).split()[0]
        eventually(lambda: job in reader.types(new[1]))
    for line in keep:
        reader.types(line)
    assert (site / "penstock.toml").exists()
