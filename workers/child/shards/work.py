"""One shard inside a child: its rows in the order in which they run, and their outcomes so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.errors import HandlerContractError
from penstock.handlers.contract import Failure
from penstock.handlers.media import MAX_OUTPUT_BYTES, too_large
from penstock.shard import NOT_RUN, SHARD_MEDIA, RowFailure, Shard, ShardOutcome, by_cost, encode_outcome, row_costs
from penstock.workers.child.runner import Flow
from penstock.workers.child.shards.rows import RowsOutcome
from penstock.workers.ipc.frames import BatchDone, JobFacts, Output, ShardDone

_NOT_RUN = "the shard's time was over before this row"


@dataclass(slots=True)
class ShardSeconds:
    """Seconds per stage, summed over a shard's micro-batches. `padded`: rows times their share of padding."""

    decode_s: float = 0.0
    preprocess_s: float = 0.0
    inference_s: float = 0.0
    postprocess_s: float = 0.0
    device_wait_s: float = 0.0
    padded: float = 0.0
    measured: int = 0


@dataclass(slots=True)
class ShardWork:
    """`began_at`: when the child took the shard up (monotonic). One thread cuts it into micro-batches, another fills it in."""

    number: int
    shard: Shard
    began_at: float
    costs: list[int]
    order: Sequence[int]
    outputs: list[Any]
    cut: int = 0
    done: int = 0
    calls: int = 0
    failures: list[RowFailure] = field(default_factory=list)
    spent: ShardSeconds = field(default_factory=ShardSeconds)
    facts: JobFacts | None = None

    @property
    def has_ended(self) -> bool:
        return self.done == len(self.order)

    def is_over(self, now: float) -> bool:
        """Whether the shard's time is over."""
        return 0.0 < self.shard.most_s <= now - self.began_at

    @property
    def next_cost(self) -> int:
        return self.costs[self.order[self.cut]]

    def take(self, size: int) -> Sequence[int]:
        """The places of the next rows; fewer at the end."""
        places = self.order[self.cut : self.cut + size]
        self.cut += len(places)
        return places

    def end_here(self) -> None:
        """Run no rows but those that are taken. The last of them are not complete yet: their completion ends the shard."""
        self.order = self.order[: self.cut]

    def put(self, places: Sequence[int], outcome: RowsOutcome) -> None:
        """Put the outcome of the rows at `places` into the shard's order."""
        for place, output in zip(places, outcome.outputs, strict=True):
            if isinstance(output, Failure):
                self._refuse(place, output)
            else:
                self.outputs[place] = output
        self.done += len(places)
        self.calls += 1

    def account(self, flow: Flow, *, postprocess_s: float) -> None:
        spent = self.spent
        spent.decode_s += flow.decode_s
        spent.preprocess_s += flow.preprocess_s
        spent.inference_s += flow.inference_s
        spent.postprocess_s += postprocess_s
        spent.device_wait_s += flow.device_wait_s
        if flow.padding is not None:
            spent.padded += flow.padding * flow.size
            spent.measured += flow.size

    def frame(self, now: float) -> ShardDone:
        """The whole shard's end."""
        bad_rows = len(self.failures)
        ran = set(self.order) if self.done < len(self.outputs) else range(len(self.outputs))
        self.failures += [RowFailure(place, NOT_RUN, _NOT_RUN, True) for place in range(len(self.outputs)) if place not in ran]
        data = self._encoded()
        spent = self.spent
        done = BatchDone(
            self.number,
            [Output(SHARD_MEDIA, data)],
            self.began_at,
            now,
            spent.preprocess_s,
            spent.inference_s,
            spent.postprocess_s,
            decode_s=spent.decode_s,
            padding=spent.padded / spent.measured if spent.measured else None,
            device_wait_s=spent.device_wait_s,
            rows=self.done,
            bad_rows=bad_rows,
        )
        return ShardDone(self.number, done, self.calls)

    def _encoded(self, most: int = MAX_OUTPUT_BYTES) -> bytes:
        try:
            data = self._written()
        except MemoryError:
            self._refuse_all("output too large: the rows of this shard do not fit into the memory of the model's process")
            return self._written()
        if len(data) <= most:
            return data
        self._refuse_all(f"{too_large(len(data), most)} for the rows of a shard together")
        return self._written()

    def _written(self) -> bytes:
        try:
            return encode_outcome(ShardOutcome(self.outputs, self.failures))
        except (OverflowError, ValueError, msgspec.MsgspecError):
            # JSON has integers of any size, but a shard's outcome has at most 64 bits: rows with larger integers fail.
            for place, output in enumerate(self.outputs):
                self._refuse_unwritable(place, output)
            return encode_outcome(ShardOutcome(self.outputs, self.failures))

    def _refuse_unwritable(self, place: int, output: Any) -> None:
        try:
            encode_outcome(ShardOutcome([output]))
        except (OverflowError, ValueError, msgspec.MsgspecError) as error:
            self.outputs[place] = None
            self._refuse(place, Failure(f"the output cannot be written: {error}", HandlerContractError.kind))

    def _refuse_all(self, why: str) -> None:
        for place, output in enumerate(self.outputs):
            if output is not None:
                self.outputs[place] = None
                self._refuse(place, Failure(why, HandlerContractError.kind))

    def _refuse(self, place: int, failure: Failure) -> None:
        self.failures.append(RowFailure(place, failure.code, failure.message, failure.retryable))


def shard_work(number: int, shard: Shard, began_at: float, *, facts: JobFacts | None = None) -> ShardWork:
    costs = row_costs(shard.rows)
    return ShardWork(number, shard, began_at, costs, by_cost(costs), [None] * len(costs), facts=facts)
