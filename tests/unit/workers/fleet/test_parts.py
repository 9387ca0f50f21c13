"""What extensions bring to a worker, put together."""

from __future__ import annotations

from penstock.broker.store.sync import RedisStore
from penstock.model_spec import ModelSpec, ScalingInfo, SlotInfo
from penstock.workers.fleet.parts import ChildStandIn, WorkerPart, WorkerParts
from penstock.workers.fleet.rollouts import Key
from penstock.workers.slot.child.manager import ChildManager
from penstock.workers.slot.claims import Inputs
from penstock.workers.slot.context import BatchTally, Observer, Observers

STORE = RedisStore("redis://127.0.0.1:1")
SPEC = ModelSpec("m", "m.py")
SCALING = ScalingInfo(0, 1, 2, 1)


class Noted:
    """A thread that notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def start(self) -> None:
        self.heard.append("start")

    def drain(self) -> None:
        self.heard.append("drain")

    def stop(self) -> None:
        self.heard.append("stop")


class Scaler:
    def __init__(self, model: str) -> None:
        self.model = model

    def infos(self) -> dict[str, dict[str, ScalingInfo]]:
        return {self.model: {"1": SCALING}}

    def memory(self) -> dict[Key, int]:
        return {(self.model, "1"): 7}


def test_threads_live_as_long_as_the_worker() -> None:
    first, second = Noted(), Noted()
    parts = WorkerParts([WorkerPart(threads=[first]), WorkerPart(), WorkerPart(threads=[second])])
    parts.start()
    parts.drain()
    parts.stop()
    assert first.heard == second.heard == ["start", "drain", "stop"]


def test_a_child_runs_a_version_for_which_no_extension_stands_in() -> None:
    stand_in = ChildStandIn(ChildManager, Inputs)
    parts = WorkerParts(
        [WorkerPart(stand_in=lambda spec: None), WorkerPart(stand_in=lambda s: stand_in if s is SPEC else None)]
    )
    assert parts.stand_in(SPEC) is stand_in
    assert parts.stand_in(ModelSpec("other", "other.py")) is None
    assert WorkerParts([WorkerPart()]).stand_in(SPEC) is None


def test_every_extension_hears_of_a_beat_and_of_what_the_worker_announced() -> None:
    heard: list[object] = []
    info = SlotInfo("m", "1", "ready")
    parts = WorkerParts([WorkerPart(on_beat=lambda store, slots: heard.append(slots)), WorkerPart()] * 2)
    parts.on_beat(STORE, [info])
    assert heard == [[info], [info]]


def test_what_several_scalers_know_is_announced_together() -> None:
    parts = WorkerParts([WorkerPart(scaler=Scaler("a")), WorkerPart(), WorkerPart(scaler=Scaler("b"))])
    assert parts.scaling() == {"a": {"1": SCALING}, "b": {"1": SCALING}}
    assert parts.memory() == {("a", "1"): 7, ("b", "1"): 7}


def test_a_part_without_observers_adds_none_to_the_slots() -> None:
    observer, tally = Observer(), BatchTally()
    parts = WorkerParts([WorkerPart(observers=[observer]), WorkerPart(tally=tally), WorkerPart()])
    observers = Observers(*parts.observers, tallies=parts.tallies)
    assert (observers.all, observers.tallies) == ((observer,), (tally,))
    assert Observers().tallies == ()
