"""Outputs that are too large, in a real child with little memory: the item fails and says so, and the child lives on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest

from penstock.model_spec import Limits, ModelSpec
from penstock.shard import SHARD_MEDIA, Shard, decode_outcome, encode_shard
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import BatchDone, Failed, FromChild, Item, Outcome, Output, Ready, RunShard, ShardDone
from penstock.workers.slot.child.process import ChildProcess
from tests.eventually import eventually

MIB = 1 << 20
LARGE = """
import numpy
import penstock

MADE = {
    "bytes": lambda mib: b"x" * (mib << 20),
    "text": lambda mib: "x" * (mib << 20),
    "array": lambda mib: numpy.full(mib << 17, 0.123456789),
    # Small in memory, large as JSON.
    "object": lambda mib: [["x" * 1024]] * (mib << 10),
}

class Large(penstock.Handler):
    def inference(self, batch):
        return [MADE[item["kind"]](item["mib"]) for item in batch]
"""


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildProcess]:
    """Yield the child of all tests: what does not fit leaves it as it was."""
    handler = tmp_path_factory.mktemp("outputs") / "large.py"
    handler.write_text(LARGE)
    spec = ModelSpec("m", str(handler), warm_up=False, limits=Limits(memory_limit_bytes=700 * MIB))
    with closing(ChildProcess(spec, Pin((), 1), max_batch_size=4)) as child:
        assert isinstance(answer(child), Ready)
        yield child


def answer(child: ChildProcess) -> FromChild:
    return eventually(child.wire.receive, timeout_s=120.0)[0]


def run(child: ChildProcess, *orders: tuple[str, int]) -> list[Outcome]:
    child.in_flight.run([Item("application/json", msgspec.json.encode({"kind": kind, "mib": mib})) for kind, mib in orders])
    frame = answer(child)
    assert isinstance(frame, BatchDone)
    return frame.outcomes


@pytest.mark.parametrize("kind", ["bytes", "text", "array", "object"])
def test_an_output_that_does_not_fit_into_memory_fails_and_ends_no_child(child: ChildProcess, kind: str) -> None:
    """The libraries that write JSON and msgpack ended the child by SIGSEGV, twice, and the job was told as poison."""
    [failed] = run(child, (kind, 450))
    assert isinstance(failed, Failed)
    [small] = run(child, (kind, 1))
    assert isinstance(small, Output)
    assert not child.has_ended()


def test_outputs_that_do_not_fit_together_fail_with_their_sizes(child: ChildProcess) -> None:
    outcomes = run(child, ("bytes", 130), ("bytes", 140), ("bytes", 1))
    [first, *_] = outcomes
    assert isinstance(first, Failed)
    assert f"output too large: {130 * MIB} bytes" in first.message
    assert not child.has_ended()


def test_rows_of_a_shard_that_do_not_fit_fail_and_end_no_child(child: ChildProcess) -> None:
    rows: list[Any] = [{"kind": "object", "mib": 60}] * 6
    child.wire.send(RunShard(1, Item(SHARD_MEDIA, encode_shard(Shard("application/json", rows)))))
    child.wire.flush()
    frame = answer(child)
    assert isinstance(frame, ShardDone)
    [outcome] = frame.done.outcomes
    assert isinstance(outcome, Output)
    told = [failure.message for failure in decode_outcome(outcome.data).failures]
    # Rows that are written while the next ones are made have less room, and the same limit then ends them as `oom`.
    assert [message for message in told if "output too large" not in message and "MemoryError" not in message] == []
    assert len(told) == len(rows)
    assert not child.has_ended()
