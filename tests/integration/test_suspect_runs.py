"""A runner and a run whose drivers died, with the real store; no worker serves the model, so a run under way waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.job import BlobLocation
from penstock.run import Run, RunSpec
from penstock.runs import runner as runner_module
from penstock.runs.execution import RunServices
from penstock.runs.runner import Runner
from tests.eventually import eventually


@pytest.fixture
def runs(fresh_redis: str) -> Iterator[RunStore]:
    with closing(RedisStore(fresh_redis)) as store:
        yield RunStore(store)


@pytest.fixture
def runner(fresh_redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A runner that looks often. It begins its work when the event is set."""
    begin, over = threading.Event(), threading.Event()
    monkeypatch.setattr(runner_module, "POLL_S", 0.05)
    services = RunServices(fresh_redis, BlobLocation(folder=tmp_path / "blobs"), tmp_path / "state", patience_s=600.0)
    runner = Runner(services, stopped=over.wait)

    def work() -> None:
        begin.wait()
        runner.run()

    thread = threading.Thread(target=work)
    thread.start()
    yield begin
    over.set()
    begin.set()
    thread.join()


def created(runs: RunStore, run_id: str, folder: Path) -> str:
    """A run of an owner of its own, for a model that nobody serves."""
    (folder / f"{run_id}.jsonl").write_text("1\n")
    spec = RunSpec(model="unserved", input=str(folder / f"{run_id}.jsonl"), output=str(folder / f"{run_id}.out.jsonl"))
    return runs.create(run_id, spec, owner=f"owner-{run_id}").run.id


def begun_by_one_that_dies(runs: RunStore, run_id: str, folder: Path) -> str:
    """A run with a driver that makes no progress, and whose lease lasts until `died`."""
    created(runs, run_id, folder)
    runs.take(run_id, "dead", lease_s=600.0)
    return run_id


def died(runs: RunStore, run_id: str) -> None:
    """The driver's lease has ended, and the run is back in its line."""
    runs.take(run_id, "dead", lease_s=0.0)
    runs.look(0)


def driven(runs: RunStore, run_id: str) -> Run | None:
    found = runs.read(run_id)
    return found if found is not None and found.driver_until > runs.now() and found.driver != "dead" else None


def test_runs_behind_a_suspect_one_begin_while_another_goes_on(runs: RunStore, runner: threading.Event, tmp_path: Path) -> None:
    """Regression: one suspect run blocked every run behind it, of all owners, while another run went on."""
    begun_by_one_that_dies(runs, "suspect", tmp_path)
    created(runs, "first", tmp_path)
    runner.set()
    eventually(lambda: driven(runs, "first"), timeout_s=60.0)
    died(runs, "suspect")
    created(runs, "behind", tmp_path)
    eventually(lambda: driven(runs, "behind"), timeout_s=60.0)
    assert driven(runs, "first")
    assert driven(runs, "suspect") is None


def test_a_suspect_run_is_tried_alone_in_the_end(
    runs: RunStore, runner: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner that is never idle would pass it over for ever: after a while the runner leaves what is under way for it."""
    monkeypatch.setattr(runner_module, "SUSPECT_WAITS_S", 0.5)
    begun_by_one_that_dies(runs, "suspect", tmp_path)
    created(runs, "first", tmp_path)
    runner.set()
    eventually(lambda: driven(runs, "first"), timeout_s=60.0)
    died(runs, "suspect")
    eventually(lambda: driven(runs, "suspect"), timeout_s=60.0)
    assert driven(runs, "first") is None
    first = runs.read("first")
    assert first is not None
    assert (first.state.final, first.drives) == (False, 0), "it was left in order, and its turn comes again"
