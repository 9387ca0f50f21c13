"""Images and a stack for the whole module. Without Docker the tests are not skipped: they fail and say what they need."""

from __future__ import annotations

import os
import secrets
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Client
from penstock.access import digest_of, new_secret
from penstock.loadtest.stack import free_port
from tests.compose.images import IMAGE, image_of
from tests.compose.load import Work
from tests.compose.stack import BUILD_ARGS, ROOT, Refused, Stack, docker, missing_tool

# One image is left out, because the model misreads it: the tests compare each answer with the digit in the file's name.
SAMPLES = sorted(set((ROOT / "examples" / "digits" / "images").glob("*.png")) - {ROOT / "examples/digits/images/0421_5.png"})


@pytest.fixture(scope="session")
def engine() -> None:
    why = missing_tool()
    if why:
        pytest.exit(why, returncode=1)


@pytest.fixture(scope="session")
def image(engine: None) -> str:
    """The image, built from this tree; with COMPOSE_NO_BUILD=1 an image that exists already."""
    if os.environ.get("COMPOSE_NO_BUILD") != "1":
        image_of("onnx", IMAGE)
    return IMAGE


@pytest.fixture(scope="session")
def next_tag(image: str) -> str:
    """The tag of an image with different store functions, as the next version of penstock may have them."""
    changed = (
        "import penstock.broker as b, pathlib; p = pathlib.Path(b.__file__).parent / 'functions' / 'lib.lua'; "
        "p.write_text(p.read_text() + chr(10) + '-- the next version' + chr(10))"
    )
    lines = [f"FROM {image}", "USER root", f'RUN python -c "{changed}"', "USER 10001:10001", ""]
    docker("build", "-q", *BUILD_ARGS, "-t", "penstock:next-onnx", "-", stdin="\n".join(lines))
    return "next"


@pytest.fixture(scope="module")
def closed_before() -> list[tuple[str, int]]:
    """The ports of the parts that were closed before the stack started."""
    ports = (5555, 6379, 9090, 9100, 9101, 3000)
    return [(host, port) for host in ("127.0.0.1", _own_address()) for port in ports if host and not answers(host, port)]


@pytest.fixture(scope="module")
def stack(image: str, closed_before: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("secrets")
    profiles = {name: free_port() for name in ("flower", "prometheus", "grafana")}
    yield from make_stack(Stack(f"penstock-test-{secrets.token_hex(3)}", free_port(), folder, profiles))


def make_stack(made: Stack) -> Iterator[Stack]:
    """The stack, set up and started as a user does it. With COMPOSE_KEEP=1 the stack keeps running after the tests."""
    try:
        made.compose("run", "--rm", "--user", f"{os.getuid()}:{os.getgid()}", "setup")
        made.key = _key_without_limits(made.secrets)
        made.up()
        yield made
    except Refused as refusal:
        pytest.fail(str(refusal), pytrace=False)
    finally:
        if os.environ.get("COMPOSE_KEEP") != "1":
            made.down()


def _key_without_limits(folder: Path) -> str:
    """Adds a key with a high rate limit: the key that `setup` made allows only 100 requests a second."""
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    secret = new_secret()
    table = f'id = "load"\nsha256 = "{digest_of(secret.encode())}"\nroles = ["submit", "read", "manage"]\nowner = "local"\n'
    with (folder / "keys.toml").open("a") as file:
        file.write(f"\n[[keys]]\n{table}rate_per_s = 5000\nburst = 5000\n")
    return f"load.{secret}"


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.url, stack.key) as opened:
        yield opened


def digits(count: int) -> list[Work]:
    """The sample images, repeated up to `count`, each with the digit that the image shows."""
    files = (SAMPLES[number % len(SAMPLES)] for number in range(count))
    return [Work("digits", file.read_bytes(), "image/png", int(file.stem.partition("_")[2])) for file in files]


def mixed(count: int) -> list[Work]:
    """Alternately an image and a job that occupies a worker for a while."""
    naps = [Work("slow", {"seconds": 0.1, "number": number}, None, number) for number in range(count)]
    return [work for pair in zip(digits(count), naps, strict=True) for work in pair]


def answers(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def _own_address() -> str:
    """The address of this machine in its network, "" if it has none. The probe sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
        return "" if address.startswith("127.") else address
