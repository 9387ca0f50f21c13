"""Archives of the stock archiver behind `penstock torchserve`: each request is answered as TorchServe answered it.

TorchServe's answers are in benchmarks/results (`python -m benchmarks.torchserve record`); each difference that is meant is
named with its reason in benchmarks/torchserve/differences.py, and in docs/reference/torchserve.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.torchserve import servers
from benchmarks.torchserve.__main__ import answers_of, recorded
from benchmarks.torchserve.archives import ARCHIVES
from benchmarks.torchserve.differences import differences, stale, unmeant
from benchmarks.torchserve.exchanges import KeptAnswer
from benchmarks.torchserve.requests import exchanges
from penstock.loadtest.stack import environment
from tests.acceptance.warm_up import PROCESSES
from tests.warm_process import start

KEYS = [exchange.key for exchange in exchanges()]
THEIRS = recorded()


@contextmanager
def forked(site: servers.Site) -> Iterator[servers.ModelServer]:
    """As `servers.penstock`, but forked: three are started here, and test_torchserve_command.py starts one as users do."""
    words = ["torchserve", *servers.options(site)]
    path = site.folder / "server.log"
    with path.open("ab") as log:
        process: Any = start(
            "penstock.cli.main", *words, env=environment({}), cwd=site.folder, stdout=log, stderr=log, lent=PROCESSES
        )
    server = servers.ModelServer(site, process, path)
    try:
        server.await_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KeptAnswer]:
    archives = [archive for archive in ARCHIVES if archive.is_buildable]
    return answers_of(forked, tmp_path_factory.mktemp("torchserve"), archives)


@pytest.mark.parametrize("key", KEYS)
def test_the_answer_is_that_of_torchserve(ours: dict[str, KeptAnswer], key: str) -> None:
    lists_all = key.startswith("management: ") and not all(archive.is_buildable for archive in ARCHIVES)
    if key not in ours or lists_all:
        pytest.skip("its archive, or one that it lists or describes, needs torch")
    assert not unmeant(differences({key: THEIRS[key]}, {key: ours[key]}))


def test_each_meant_difference_is_one(ours: dict[str, KeptAnswer]) -> None:
    if len(ours) < len(THEIRS):
        pytest.skip("some archives need torch")
    assert not stale(differences(THEIRS, ours))


def test_each_request_was_sent_to_torchserve_too() -> None:
    assert set(KEYS) == set(THEIRS)
