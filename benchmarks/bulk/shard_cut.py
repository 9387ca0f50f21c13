"""Cut a shard into micro-batches in the model's process, as now, or in the process that owns the slot: rows/s and CPU per row.

Both ways use a pipe and a model that spins 1 ms per 256 rows; they run in turns, five times each, with one slot and with two.
In the second way the owner of the slot never parses a row: it sorts and places rows as raw msgpack.
`python -m benchmarks.bulk.shard_cut` prints a line per kind of row; docs/design/runs.md has the decision.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from statistics import median
from threading import Thread
from typing import Any, NamedTuple

import msgspec

from penstock.shard import Shard, ShardOutcome, by_cost, decode_shard, encode_outcome, encode_shard, row_costs

BATCH, ROWS, CALL_S, TURNS = 256, 16_384, 0.001, 5
# How many micro-batches are on their way, so that the model never waits for the next one.
IN_FLIGHT = 3

# What the model's process does, and what the owner of the slot does.
Way = tuple[Callable[..., None], Callable[..., None]]

_encode = msgspec.msgpack.encode
_rows = msgspec.msgpack.Decoder(list[msgspec.Raw])


class RawShard(msgspec.Struct, array_like=True):
    """A `Shard` whose rows are not parsed."""

    media: str
    rows: list[msgspec.Raw]


class CutFigures(NamedTuple):
    """`owner_us` and `child_us`: CPU per row in the process that owns the slots, and in the models' processes."""

    rows_per_s: float
    owner_us: float
    child_us: float


def _call(rows: Sequence[Any], output: Any) -> list[Any]:
    until = time.perf_counter() + CALL_S
    while time.perf_counter() < until:
        pass
    return [output] * len(rows)


def _ends_of(count: int) -> list[slice]:
    return [slice(at, at + BATCH) for at in range(0, count, BATCH)]


def cutting_child(pipe: Connection, output: Any) -> None:
    while data := pipe.recv_bytes():
        rows = decode_shard(data).rows
        order = by_cost(row_costs(rows))
        outputs: list[Any] = [None] * len(rows)
        for part in _ends_of(len(rows)):
            made = _call([rows[at] for at in order[part]], output)
            for at, one in zip(order[part], made, strict=True):
                outputs[at] = one
        pipe.send_bytes(encode_outcome(ShardOutcome(outputs)))
    pipe.send(time.process_time())


def plain_child(pipe: Connection, output: Any) -> None:
    while data := pipe.recv_bytes():
        pipe.send_bytes(_encode(_call(msgspec.msgpack.decode(data), output)))
    pipe.send(time.process_time())


def _send(pipe: Connection, shards: Sequence[bytes]) -> None:
    for data in shards:
        pipe.send_bytes(data)


def forward(pipe: Connection, shards: Sequence[bytes]) -> None:
    sending = Thread(target=_send, args=(pipe, shards))
    sending.start()
    for _ in shards:
        pipe.recv_bytes()
    sending.join()


def cut(pipe: Connection, shards: Sequence[bytes]) -> None:
    for data in shards:
        rows = msgspec.msgpack.decode(data, type=RawShard).rows
        order = by_cost([len(row) for row in rows])
        outputs: list[Any] = [None] * len(rows)
        sent: deque[Sequence[int]] = deque()
        for part in _ends_of(len(rows)):
            pipe.send_bytes(_encode([rows[at] for at in order[part]]))
            sent.append(order[part])
            if len(sent) == IN_FLIGHT:
                _place(pipe, sent.popleft(), outputs)
        while sent:
            _place(pipe, sent.popleft(), outputs)
        _encode([outputs, []])


def _place(pipe: Connection, places: Sequence[int], outputs: list[Any]) -> None:
    for at, one in zip(places, _rows.decode(pipe.recv_bytes()), strict=True):
        outputs[at] = one


def measured(way: Way, slots: int, shards: Sequence[bytes], output: Any) -> CutFigures:
    child, own = way
    pipes = [Pipe() for _ in range(slots)]
    children = [Process(target=child, args=(theirs, output)) for _, theirs in pipes]
    for one in children:
        one.start()
    owners = [Thread(target=own, args=(ours, shards)) for ours, _ in pipes]
    began, cpu = time.perf_counter(), time.process_time()
    for thread in owners:
        thread.start()
    for thread in owners:
        thread.join()
    took, spent = time.perf_counter() - began, time.process_time() - cpu
    for ours, _ in pipes:
        ours.send_bytes(b"")
    child_s = sum(ours.recv() for ours, _ in pipes)
    for one in children:
        one.join()
    rows = ROWS * len(shards) * slots
    return CutFigures(rows / took, 1e6 * spent / rows, 1e6 * child_s / rows)


TEXT = "a sentence of about a hundred characters, as data teams classify and embed them by the million "
KINDS: dict[str, tuple[list[Any], Any, int]] = {
    "numbers": (list(range(ROWS)), 7.5, 6),
    "features": ([[0.5] * 16] * ROWS, 0.25, 6),
    "texts": ([TEXT + "x" * (n % 40) for n in range(ROWS)], {"label": "good", "score": 0.98}, 6),
    "embeddings": ([TEXT] * ROWS, [0.123456789] * 384, 2),
}
WAYS: dict[str, Way] = {
    "child": (cutting_child, forward),
    "owner": (plain_child, cut),
}


def main() -> None:
    for kind, (rows, output, count) in KINDS.items():
        shards = [encode_shard(Shard("application/json", rows))] * count
        for slots in (1, 2):
            runs = [{way: measured(parts, slots, shards, output) for way, parts in WAYS.items()} for _ in range(TURNS)]
            ratio = median(run["owner"].rows_per_s / run["child"].rows_per_s for run in runs)
            cpu = [median(getattr(run[way], name) for run in runs) for name in ("owner_us", "child_us") for way in WAYS]
            line = "CPU/row us, owner {:.2f} -> {:.2f}, child {:.2f} -> {:.2f}".format(*cpu)
            print(f"{kind:10} {slots} slots: rows/s {ratio:.2f} of today's, {line}", flush=True)


if __name__ == "__main__":
    main()
