"""Workers, their pinning plan, and a model's versions."""

from __future__ import annotations

import json

import pytest

from penstock.broker.backlog import SlotCapacity
from penstock.gateway.dashboard.rows.machine_rows import core_map, place_of, sample_of, slowest_call, version_rows, worker_rows
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.model_spec import LearnedCalls, ModelInfo, ScalingInfo, SlotInfo, VersionInfo, WorkerInfo

READY = SlotInfo("square", "1", "ready", cores=(0, 1), load_s=1.5, first_call_s={1: 0.02, 8: 0.1}, latency_s={1: 0.01})
OTHER = SlotInfo("ocr", "1", "loading", device="cuda:0", cores=(1,))


def test_a_worker_shows_its_slots_and_whether_it_is_silent() -> None:
    quiet = WorkerInfo("b", "here", 2, started_at=10.0, slots=(READY, OTHER), seen_at=80.0)
    fresh = WorkerInfo("a", "here", 1, started_at=0.0, seen_at=99.5)
    first, second = worker_rows([quiet, fresh], now=100.0)
    assert (first.name, first.silent, first.seen, first.up, first.ready) == ("a", False, "just now", "–", 0)
    assert (second.silent, second.seen, second.up, second.ready) == (True, "20 s ago", "1 min 30 s", 1)
    assert (second.devices, [slot.model for slot in second.slots]) == (("cpu", "cuda:0"), ["ocr", "square"])


def test_a_core_that_two_slots_share_is_marked() -> None:
    assert core_map([READY, OTHER]) == [(0, 1), (1, 2)]


def test_the_slowest_first_call_is_shown_with_its_size() -> None:
    assert slowest_call(READY) == (8, 0.1)


def test_a_slot_shows_its_place_in_the_plan() -> None:
    shared = SlotInfo("ocr", "1", "ready", threads=2, node=1, placement="shared")
    assert (place_of(shared), place_of(OTHER)) == ("2 threads, node 1, shared", "")


def test_a_version_shows_what_was_learned_of_it() -> None:
    info = VersionInfo(input_schema={"type": "number"}, description="squares")
    capacity = SlotCapacity(1, 100.0, {1: 0.01, 2: 0.011, 3: 0.012, 6: 0.02})
    one = VersionEntry("1", info, None, capacity)
    two = VersionEntry("2", None, None, SlotCapacity())
    entry = ModelEntry(ModelInfo("square"), one, {"1": one, "2": two})
    worker = WorkerInfo("w", "here", 1, 0.0, (READY, SlotInfo("square", "2", "failed", error="no weights")))
    first, second = version_rows(entry, [worker])
    assert (first.default, first.tone, first.state, first.load_s, first.first_call) == (
        True, "good", "ready", 1.5, ((1, 0.02), (8, 0.1)),
    )  # fmt: skip
    assert (json.loads(first.input_schema), first.output_schema, first.description) == ({"type": "number"}, "", "squares")
    assert first.curve is not None
    assert [(size, took) for _, _, size, took in first.curve.dots] == [(1, 0.010), (2, 0.011), (3, 0.012), (6, 0.020)]
    assert "An item costs least in batches of 6: 3.3 ms, 3.0 times as fast as one by one." in first.why_sizes
    assert [size for size, _ in first.table] == [1, 2, 6]
    assert (second.default, second.tone, second.state, second.load_s) == (False, "bad", "could not be loaded: no weights", None)


def test_a_version_shows_how_many_slots_it_is_to_have_and_that_it_is_off() -> None:
    up, off = VersionEntry("1", None, None, SlotCapacity(1), 3), VersionEntry("2", None, None, SlotCapacity(), 0)
    entry = ModelEntry(ModelInfo("square"), up, {"1": up, "2": off})
    worker = WorkerInfo("w", "here", 1, 0.0, (READY,), wanted={"square": {"1": 3, "2": 0}})
    first, second = version_rows(entry, [worker, worker])
    assert (first.ready_slots, first.wanted_slots, first.scale, first.tone) == (1, 6, 3, "good")
    assert (second.wanted_slots, second.scale, second.tone, second.state) == (0, 0, "idle", "scaled to no slots")


def test_a_version_shows_what_one_of_its_slots_has_learned_of_calls() -> None:
    one = VersionEntry("1", None, None, SlotCapacity(2, 100.0, {}))
    calls = LearnedCalls("padded cost", ((64.0, 0.002), (256.0, 0.007)), 3.5)
    slots = (READY, SlotInfo("other", "1", "ready", calls=LearnedCalls("items")), SlotInfo("square", "1", "ready", calls=calls))
    [row] = version_rows(ModelEntry(ModelInfo("square"), one, {"1": one}), [WorkerInfo("w", "here", 1, 0.0, slots)])
    assert row.calls == calls


# As msgspec and pydantic write the schema of a class: the whole is a reference to a definition beside it.
REVIEW = {"type": "object", "properties": {"text": {"type": "string"}, "stars": {"type": "integer"}}, "required": ["text"]}


@pytest.mark.parametrize(
    ("schema", "sample"),
    [
        (None, 4),
        ({"type": "object", "properties": {"x": {"type": "number"}, "y": {}}, "required": ["x"]}, {"x": 4}),
        ({"type": "object"}, {}),
        ({"type": "array", "items": {"type": "string"}}, ["text"]),
        ({"type": "string", "example": "hi"}, "hi"),
        ({"type": ["string", "null"]}, "text"),
        ({"type": ["null", "integer"], "minimum": 10}, 10),
        ({"type": "integer", "maximum": 3}, 3),
        ({"enum": ["low", "high"]}, "low"),
        ({"type": "array", "items": {"type": "number"}, "minItems": 3}, [4, 4, 4]),
        ({"$ref": "#/$defs/Review", "$defs": {"Review": REVIEW}}, {"text": "text"}),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Review"}], "$defs": {"Review": REVIEW}}, {"text": "text"}),
        ({"$ref": "#", "type": "string"}, 4),
        ({"$ref": "https://elsewhere/schema"}, 4),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, 4),
    ],
)
def test_a_sample_has_the_shape_of_the_schema(schema: dict[str, object] | None, sample: object) -> None:
    assert json.loads(sample_of(schema)) == sample


def test_a_version_whose_slots_follow_its_work_shows_its_bounds_and_its_last_change() -> None:
    one = VersionEntry("1", None, None, SlotCapacity())
    info = ScalingInfo(0, 2, 2, 0, start_s=2.0, reason="idle", changed_at=50.0)
    worker = WorkerInfo("w", "here", 1, 0.0, wanted={"square": {"1": 0}}, scaling={"square": {"1": info}})
    [row] = version_rows(ModelEntry(ModelInfo("square"), one, {"1": one}), [worker])
    assert (row.tone, row.state) == ("idle", "unloaded; the next job has it loaded, in about 2 s")
    assert row.scaling == "0 to 2 slots per worker process; last change: idle"
