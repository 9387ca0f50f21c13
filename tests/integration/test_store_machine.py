"""Long random histories on a real server, compared with the oracle, and the invariants checked after every step."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import rule

from penstock.embedded.server import EmbeddedServer
from tests.integration.event_machine import EventMachine
from tests.integration.store_machine import StoreMachine, walk

# Every dump reads past the keys of other modules.
pytestmark = pytest.mark.usefixtures("redis_url")

SLOW_IS_FINE = list(HealthCheck)
# A mistake that needs several leases of one job is met in long walks rather than in many short ones.
WALKS = settings(max_examples=40, stateful_step_count=80, deadline=None, database=None, suppress_health_check=SLOW_IS_FINE)
FEW_WALKS = settings(WALKS, max_examples=8, stateful_step_count=25, phases=[Phase.generate])


def test_any_history_keeps_the_invariants_and_matches_the_oracle(redis_url: str) -> None:
    walk(lambda: StoreMachine(redis_url), WALKS)


def test_any_history_of_jobs_with_webhooks_keeps_their_events(redis_url: str) -> None:
    walk(lambda: EventMachine(redis_url), WALKS)


class DurableMachine(StoreMachine):
    """The same walk on a server that is killed again and again: with fsync always, it comes back with all it has answered."""

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__(server.url)
        self.server = server

    @rule()
    def kill_and_restart(self) -> None:
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.server.pid, os.WEXITED | os.WNOWAIT)
        assert self.server.check()
        self.store.close()
        self.store = self.connect()
        self.slots.close()
        self.client.connection_pool.disconnect()
        self.listen()


@pytest.fixture
def steady_server(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedServer]:
    # The test kills the server on purpose, many times in a row.
    monkeypatch.setattr("penstock.embedded.server._RESTARTS_IN_A_ROW", 10_000)
    with EmbeddedServer(state_dir, fsync="always") as server:
        yield server


def test_a_killed_server_comes_back_with_every_answer_it_gave(steady_server: EmbeddedServer) -> None:
    walk(lambda: DurableMachine(steady_server), FEW_WALKS)
