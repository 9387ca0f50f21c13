"""Everything that a store holds of one model, in one shape for both stores, so that one set of invariants checks either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import redis

from penstock.broker.memory.store import MemoryStore
from penstock.job import BANDS
from penstock.job import JobState as State

WEIGHT = 2**42  # a score in the queue is the band times WEIGHT, plus the deadline in ms
TICKET = b"t"


@dataclass(frozen=True)
class Stored:
    """One record, reduced to what the invariants need. `places` names every index that lists the job."""

    state: State
    token: str
    final_token: str
    epoch: int
    worker: str
    attempts: int
    max_attempts: int
    crashes: int
    losses: int
    in_a_row: int
    max_crashes: int
    shard: bool
    result_ttl_kept: bool
    dealt_with: bool
    places: tuple[str, ...]


@dataclass(frozen=True)
class Dump:
    """`waiting` and `tickets` count per band; suspects count in band 0. `strays` are index entries without a record.

    `mislisted` are jobs that stand on a list of all owners and not on that of theirs, or the other way round.
    `turnless` are owned jobs in a line that never gets its turn. `turns` holds, per version and band, the owners in the order
    of their turns. `gone` counts jobs whose record vanished, `gone_ended` those of them that had ended.
    `repaired` counts what the reconciler mended.
    """

    jobs: dict[str, Stored]
    outbox: set[str]
    inbox: set[str]
    leases: set[str]
    accepted: int
    ended: dict[str, int]
    collected: int
    waiting: dict[int, int]
    tickets: dict[int, int]
    strays: set[str] = field(default_factory=set)
    turnless: set[str] = field(default_factory=set)
    mislisted: set[str] = field(default_factory=set)
    turns: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    gone: int = 0
    gone_ended: int = 0
    repaired: int = 0


def dump_memory(store: MemoryStore, model: str) -> Dump:
    queue = store.queue(model)
    places: dict[str, list[str]] = {}
    shelves: dict[str, set[str]] = {
        "ready": set(queue.ready),
        "shards": queue.shards,
        "solo": queue.solo,
        "delayed": queue.delayed,
    }
    for name, serials in [*shelves.items(), *((f"held:{worker}", held) for worker, held in queue.held.items())]:
        for serial in serials:
            places.setdefault(serial, []).append(name)
    waiting = queue.depth_by_band()
    waiting[0] += len(queue.solo)
    return Dump(
        jobs={
            serial: Stored(
                state=record.state,
                token=record.token,
                final_token=record.final_token,
                epoch=record.epoch,
                worker=record.worker,
                attempts=record.attempts,
                max_attempts=record.new.max_attempts,
                crashes=record.crashes,
                losses=record.losses,
                in_a_row=record.in_a_row,
                max_crashes=record.new.max_crashes,
                shard=record.shard,
                result_ttl_kept=True,
                dealt_with=record.replayed_as is not None or record.dismissed,
                places=tuple(places.get(serial, ())),
            )
            for serial, record in queue.records.items()
        },
        outbox=set(queue.outbox),
        inbox=set(queue.inbox),
        leases=set(queue.leases),
        accepted=queue.accepted,
        ended=dict(queue.ended),
        collected=queue.counters["collected"],
        waiting=waiting,
        tickets=waiting,
        strays=(set(places) | queue.inbox) - set(queue.records),
        turnless=queue.without_turn(),
        turns={
            (version, band): queue.turns.first(version, band, 99)
            for (version, band), owners in queue.turns.numbers.items()
            if owners
        },
    )


class RedisDump:
    """Reads one model's keys (broker/functions/lib.lua describes them) without any of the store's own code."""

    def __init__(self, client: redis.Redis, model: str) -> None:
        self._redis: Any = client
        self._model = model
        self._p = f"ps:{{{model}}}:"

    def dump(self) -> Dump:
        lines = self._lines()
        turns = self._turns()
        places, waiting = self._places(lines)
        final = self._members("final")
        keys = [key.decode() for key in self._redis.scan_iter(f"{self._p}job:*", count=1000)]
        serials = [key.rpartition(":")[2] for key in keys]
        counters = {k.decode(): int(v) for k, v in self._redis.hgetall(f"{self._p}counters").items()}
        return Dump(
            jobs={serial: self._stored(serial, places, final) for serial in serials},
            outbox=self._members("outbox"),
            inbox=self._members("inbox"),
            leases=self._members("leases"),
            accepted=counters.get("accepted", 0),
            ended={name[6:]: n for name, n in counters.items() if name.startswith("ended:")},
            collected=counters.get("collected", 0),
            waiting=waiting,
            tickets={band: self._redis.lrange(self.tickets(band), 0, -1).count(TICKET) for band in BANDS},
            strays=(set(places) | final | self._members("index") | self._members("inbox")) - set(serials),
            turnless={
                serial for version, owner, band, serial in lines if owner and owner not in turns.get((version, band), ())
            },
            turns=turns,
            gone=counters.get("gone", 0),
            gone_ended=counters.get("gone:ended", 0),
            mislisted=self._mislisted("index") | self._mislisted("inbox"),
            repaired=counters.get("repaired", 0),
        )

    def _mislisted(self, index: str) -> set[str]:
        def owner(serial: str) -> str:
            return (self._redis.hget(f"{self._p}job:{serial}", "owner") or b"").decode()

        expected = {(whose, serial) for serial in self._members(index) if (whose := owner(serial))}
        keys = [key.decode() for key in self._redis.scan_iter(f"{self._p}{index}:*", count=1000)]
        found = {
            (key.removeprefix(f"{self._p}{index}:"), serial)
            for key in keys
            for serial in self._members(key.removeprefix(self._p))
        }
        # What a function that failed leaves of a job without a record harms nobody: such jobs are left out of lists.
        return {serial for whose, serial in expected ^ found if owner(serial)}

    def tickets(self, band: int) -> str:
        """Return the name of the list that stock Celery, Flower and KEDA measure."""
        name = f"penstock.{{{self._model}}}"
        return name if band == 0 else f"{name}\x06\x16{band}"

    def _members(self, name: str) -> set[str]:
        return {member.decode() for member in self._redis.zrange(f"{self._p}{name}", 0, -1)}

    def _members_of_all(self, name: str) -> list[str]:
        """Return the members of an index that has one key per version."""
        keys = self._redis.scan_iter(f"{self._p}{name}:*", count=1000)
        return [serial.decode() for key in keys for serial in self._redis.zrange(key, 0, -1)]

    def _lines(self) -> list[tuple[str, str, int, str]]:
        """Return version, owner, band and serial of every job in line."""
        found = []
        for key in self._redis.scan_iter(f"{self._p}ready:*", count=1000):
            version, _, owner = key.decode().removeprefix(f"{self._p}ready:").partition(":")
            entries = self._redis.zrange(key, 0, -1, withscores=True)
            found += [(version, owner, int(score // WEIGHT), serial.decode()) for serial, score in entries]
        return found

    def _turns(self) -> dict[tuple[str, int], list[str]]:
        found = {}
        for key in self._redis.scan_iter(f"{self._p}turns:*", count=1000):
            version, _, band = key.decode().removeprefix(f"{self._p}turns:").partition(":")
            found[version, int(band)] = [owner.decode() for owner in self._redis.zrange(key, 0, -1)]
        return found

    def _places(self, lines: Iterable[tuple[str, str, int, str]]) -> tuple[dict[str, list[str]], dict[int, int]]:
        places: dict[str, list[str]] = {}
        waiting: Counter[int] = Counter(dict.fromkeys(BANDS, 0))
        for _, _, band, serial in lines:
            places.setdefault(serial, []).append("ready")
            waiting[band] += 1
        for name, band in (("solo", 0), ("shards", 9)):
            for serial in self._members_of_all(name):
                places.setdefault(serial, []).append(name)
                waiting[band] += 1
        for serial in self._members("delayed"):
            places.setdefault(serial, []).append("delayed")
        for key in self._redis.scan_iter(f"{self._p}held:*", count=1000):
            for serial in self._redis.hkeys(key):
                places.setdefault(serial.decode(), []).append(key.decode().removeprefix(self._p))
        return places, dict(waiting)

    def _stored(self, serial: str, places: dict[str, list[str]], final: set[str]) -> Stored:
        raw = {k.decode(): v.decode(errors="replace") for k, v in self._redis.hgetall(f"{self._p}job:{serial}").items()}
        return Stored(
            state=State(raw["state"]),
            token=raw.get("token", ""),
            final_token=raw.get("final_token", ""),
            epoch=int(raw.get("epoch", "0")),
            worker=raw.get("worker", ""),
            attempts=int(raw.get("attempts", "0")),
            max_attempts=int(raw["terms"].split(",")[0]),
            crashes=int(raw.get("crashes", "0")),
            losses=int(raw.get("losses", "0")),
            in_a_row=int(raw.get("in_a_row", "0")),
            max_crashes=int(raw["terms"].split(",")[1]),
            shard=raw.get("call") == "shard",
            result_ttl_kept=(serial in final) == State(raw["state"]).final,
            dealt_with="replayed_as" in raw or "dismissed" in raw,
            places=tuple(places.get(serial, ())),
        )
