"""Fixtures for every test. One real server serves the whole session, and each test that asks for it gets it empty."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from redis import Redis

from penstock.embedded.server import EmbeddedServer, find_server
from penstock.errors import ConfigError
from tests.s3_server import BUCKET, s3_server

# How fast this machine makes examples says nothing about the code: beside other load a property test failed for being slow.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Logs that no test configures go to structlog's console, which draws a traceback with all its variables: that takes seconds.
_CONSOLE = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _CONSOLE])

# A suite that a script starts with `&` ignores SIGINT, and so do its child processes: one such run hung at a test of Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Some images forbid bytecode files: each of the hundreds of processes that tests start would then compile our sources anew, and
# a start would cost a quarter more.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# And so would each process of the tests, with the tests themselves: a third of the time in which tests are collected.
sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """Fifteen thousand tests are objects that stay. A collector that looks at each takes an eighth of the unit tests."""
    gc.collect()
    gc.freeze()


# A folder whose files share one large stack: they run in one process, so that the suite starts it once.
SHARING = "tests/doors"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give out files, as `--dist loadfile` does, and that folder like one file."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    if config.getvalue("dist") != "loadfile":
        return None
    scheduler = LoadFileScheduling(config, log)
    file_of = scheduler._split_scope
    scheduler._split_scope = lambda nodeid: SHARING if nodeid.startswith(f"{SHARING}/") else file_of(nodeid)
    return scheduler


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a server that serves the whole session: PENSTOCK_TEST_REDIS_URL if that is set, else an embedded one."""
    given = os.environ.get("PENSTOCK_TEST_REDIS_URL")
    if given:
        if "PYTEST_XDIST_WORKER" in os.environ:
            pytest.exit("tests empty the server of PENSTOCK_TEST_REDIS_URL: run them one by one, make test TEST_PROCESSES=0")
        yield given
        return
    _skip_without_server()
    # `everysec` is enough here, because tests of durability start servers of their own.
    with EmbeddedServer(tmp_path_factory.mktemp("store"), fsync="everysec") as server:
        yield server.url


@pytest.fixture(scope="module")
def redis_url(redis_server: str) -> Iterator[str]:
    """Yield the session's server, emptied before and after the module.

    Jobs that another file left behind would be taken by a test that claims "the job" it has just submitted.
    FLUSHALL keeps the functions on the server.
    """
    _empty(redis_server)
    yield redis_server
    _empty(redis_server)


@pytest.fixture
def fresh_redis(redis_url: str) -> Iterator[str]:
    """Yield the session's server, emptied before and after: ten thousand jobs left behind are a full queue to the next test."""
    _empty(redis_url)
    yield redis_url
    _empty(redis_url)


def _empty(url: str) -> None:
    with closing(Redis.from_url(url)) as redis:
        redis.flushall()


@pytest.fixture(scope="session")
def has_server() -> None:
    """Skip a test that starts a server of its own if no server program is found."""
    _skip_without_server()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Return a folder for a server of the test's own."""
    _skip_without_server()
    return tmp_path / "state"


def _skip_without_server() -> None:
    try:
        find_server()
    except ConfigError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def s3_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the variables that a process needs to reach the bucket `s3://penstock`; its S3 server serves the whole session."""
    with s3_server(tmp_path_factory.mktemp("s3")) as environment:
        yield environment


@pytest.fixture
def s3_url(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Set those variables, and return a prefix in the bucket that no other test uses."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{os.urandom(6).hex()}"
