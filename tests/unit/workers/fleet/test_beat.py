"""The beat renews every slot's lease, whatever happens to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.records import LeaseRenewal
from penstock.errors import StoreUnavailable
from penstock.job import JobId, new_job_id, queues_of
from penstock.model_spec import Limits
from penstock.workers.fleet.beat import Beat


class Store:
    """A store that notes the leases that it renewed. `faults` are raised for the models that they name."""

    def __init__(self, **faults: Exception) -> None:
        self.faults = faults
        self.renewed: list[str] = []

    def extend(
        self, model: str, worker: str, *, lease_s: float, max_run_s: float, progressed: Sequence[JobId] = ()
    ) -> LeaseRenewal:
        if model in self.faults:
            raise self.faults[model]
        self.renewed.append(worker)
        return LeaseRenewal()


def slot(model: str) -> Any:
    """What the beat sees of a slot that holds jobs and whose loop turns."""
    return SimpleNamespace(
        turned_at=100.0,
        spec=SimpleNamespace(name=model, limits=Limits()),
        leases=lambda: [(model, SimpleNamespace(name=f"{model}.1", confirm=lambda at: None))],
        progress=SimpleNamespace(moved=list),
        fence=lambda name: None,
    )


def beat(store: Any, *models: str, announced: list[Any]) -> Beat:
    return Beat(store, lambda: [slot(model) for model in models], lease_s=15.0, on_beat=announced.append)


def test_an_error_in_one_slots_renewal_costs_the_others_neither_their_lease_nor_their_announcement() -> None:
    """Regression: the slots behind it lost their leases, and the worker was not announced any more."""
    store, announced = Store(b=RuntimeError("the record of a job makes no sense")), list[Any]()
    beat(store, "a", "b", "c", announced=announced).run_once(100.0)
    assert (store.renewed, announced) == (["a.1", "c.1"], [store])


def test_a_store_that_is_away_ends_the_round() -> None:
    store, announced = Store(a=StoreUnavailable("away")), list[Any]()
    with pytest.raises(StoreUnavailable):
        beat(store, "a", "b", announced=announced).run_once(100.0)
    assert (store.renewed, announced) == ([], [])


def test_a_lease_in_each_queue_is_renewed_with_the_progress_of_its_own_jobs() -> None:
    told: list[tuple[str, str, list[JobId]]] = []

    def extend(queue: str, worker: str, *, progressed: Sequence[JobId], **_: Any) -> LeaseRenewal:
        told.append((queue, worker, list(progressed)))
        return LeaseRenewal(lost=queue == "m:1")

    fenced: list[str] = []
    leases = [(queue, SimpleNamespace(name=f"w.{n}", confirm=lambda at: None)) for n, queue in enumerate(queues_of("m", 3))]
    jobs = [new_job_id("m", partition) for partition in (0, 2, 2)]
    holder = SimpleNamespace(
        turned_at=100.0,
        spec=SimpleNamespace(name="m", limits=Limits()),
        leases=lambda: leases,
        progress=SimpleNamespace(moved=lambda: jobs),
        fence=fenced.append,
        give_up=lambda jobs: None,
    )
    store: Any = SimpleNamespace(extend=extend)
    slots: Any = [holder]
    Beat(store, lambda: slots, lease_s=15.0, on_beat=lambda store: None).run_once(100.0)
    assert told == [("m", "w.0", jobs[:1]), ("m:1", "w.1", []), ("m:2", "w.2", jobs[1:])]
    assert fenced == ["w.1"]
