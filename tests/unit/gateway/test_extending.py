"""A gateway says of which workers the extensions differ from its own."""

from __future__ import annotations

from structlog.testing import capture_logs

from penstock.gateway.extending import DifferingWorkers
from penstock.model_spec import WorkerInfo


def worker(name: str, *extensions: str) -> WorkerInfo:
    return WorkerInfo(name, "here", 1, 0.0, extensions=extensions)


def test_each_worker_with_other_extensions_is_logged_once() -> None:
    differing = DifferingWorkers(["history", "mine"])
    seen = [worker("same", "mine", "history"), worker("other", "history", "yours"), WorkerInfo("older", "here", 1, 0.0)]
    with capture_logs() as logged:
        differing.look(seen)
        differing.look(seen)
    assert logged == [
        {
            "event": "extensions_differ",
            "log_level": "warning",
            "worker": "other",
            "missing_there": ["mine"],
            "missing_here": ["yours"],
        }
    ]


def test_a_worker_that_comes_back_with_them_is_logged_again() -> None:
    differing = DifferingWorkers(["history"])
    with capture_logs() as logged:
        for there in ([worker("w")], [], [worker("w")]):
            differing.look(there)
    assert [line["worker"] for line in logged] == ["w", "w"]
