"""Everything that a store holds of one model, in one shape for the store and its oracle: the same invariants check both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from penstock.job import BANDS
from penstock.job import JobState as State
from tests.contract.event_dumps import StoredEvent, events_in_redis
from tests.oracle.store import StoreOracle

WEIGHT = 2**42  # a score in the queue is the band times WEIGHT, plus the deadline in ms
TICKET = b"t"
# One call reads every key of a model: random walks dump after every step, where forty round trips made most of their time.
_READ = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind, parts = redis.call('TYPE', key).ok, {}
  if kind == 'hash' then parts = redis.call('HGETALL', key)
  elseif kind == 'zset' then parts = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then parts = redis.call('SMEMBERS', key)
  elseif kind == 'list' then parts = redis.call('LRANGE', key, 0, -1) end
  found[#found + 1] = {key, parts}
end
return found
"""


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
    owner: str
    result_ttl_kept: bool
    dealt_with: bool
    places: tuple[str, ...]


@dataclass(frozen=True)
class Dump:
    """`waiting` and `tickets` count per band; suspects count in band 0. `strays` are index entries without a record.

    `mislisted` are jobs that stand on a list of all owners and not on that of theirs, or the other way round.
    `turnless` are owned jobs in a line that never gets its turn. `turns` holds, per version and band, the owners in the order
    of their turns. `gone` counts jobs whose record vanished, `gone_ended` those of them that had ended.
    `repaired` counts what the reconciler mended. `events` are those of the jobs that have a webhook. `open` counts the jobs of
    each owner that have not ended, `planned` those of them that wait for their start; neither may have an entry of 0. `owners`
    are those with a list of their own.
    """

    jobs: dict[str, Stored]
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
    events: dict[str, StoredEvent] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)
    planned: dict[str, int] = field(default_factory=dict)
    owners: set[str] = field(default_factory=set)


def dump_oracle(store: StoreOracle, model: str) -> Dump:
    queue = store.queue(model)
    places: dict[str, list[str]] = {}
    shelves: dict[str, set[str]] = {
        "ready": queue.ready,
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
                owner=record.new.owner,
                result_ttl_kept=True,
                dealt_with=record.replayed_as is not None or record.dismissed,
                places=tuple(places.get(serial, ())),
            )
            for serial, record in queue.records.items()
        },
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
        open=dict(queue.open_jobs()),
        planned=dict(queue.planned_jobs()),
        owners={record.new.owner for record in queue.records.values()} - {""},
    )


class RedisDump:
    """Reads one model's keys (broker/functions/lib.lua describes them) without any of the store's own code."""

    def __init__(self, client: redis.Redis, model: str) -> None:
        self._redis: Any = client
        self._model = model

    def dump(self) -> Dump:
        keys = _Keys(self._model, self._redis.eval(_READ, 0, f"*{{{self._model}}}*"))
        lines = keys.lines()
        turns = keys.turns()
        places, waiting = keys.places(lines)
        final, index, inbox = (keys.members(name) for name in ("final", "index", "inbox"))
        records = keys.hashes("job:")
        counters = {name: int(count) for name, count in keys.hash("counters").items()}
        return Dump(
            jobs={serial: _stored(serial, raw, places, final) for serial, raw in records.items()},
            inbox=inbox,
            leases=keys.members("leases"),
            accepted=counters.get("accepted", 0),
            ended={name[6:]: n for name, n in counters.items() if name.startswith("ended:")},
            collected=counters.get("collected", 0),
            waiting=waiting,
            tickets={band: keys.tickets(band) for band in BANDS},
            strays=(set(places) | final | index | inbox) - set(records),
            turnless={
                serial for version, owner, band, serial in lines if owner and owner not in turns.get((version, band), ())
            },
            turns=turns,
            gone=counters.get("gone", 0),
            gone_ended=counters.get("gone:ended", 0),
            mislisted=_mislisted(keys, "index", records) | _mislisted(keys, "inbox", records) | _mistagged(keys, records),
            repaired=counters.get("repaired", 0),
            events=events_in_redis(records, keys.event_lists()),
            open={owner: int(n) for owner, n in keys.hash("open").items()},
            planned={owner: int(n) for owner, n in keys.hash("planned").items()},
            owners=keys.elements("owners"),
        )

    def delete(self) -> None:
        """Remove every key of the model: what tests leave behind is read past by every later dump."""
        keys = list(self._redis.scan_iter(f"*{{{self._model}}}*", count=10_000))
        if keys:
            self._redis.delete(*keys)


class _Keys:
    """All keys of one model at one moment, by name without the model's prefix."""

    def __init__(self, model: str, found: Iterable[tuple[bytes, list[bytes]]]) -> None:
        self._tickets = f"penstock.{{{model}}}"
        self._parts = {key.decode().removeprefix(f"ps:{{{model}}}:"): parts for key, parts in found}

    def hash(self, name: str) -> dict[str, str]:
        parts = [part.decode(errors="replace") for part in self._parts.get(name, ())]
        return dict(zip(parts[::2], parts[1::2], strict=True))

    def hashes(self, prefix: str) -> dict[str, dict[str, str]]:
        return {rest: self.hash(prefix + rest) for rest in self._under(prefix)}

    def scores(self, name: str) -> dict[str, float]:
        """Return the members of a sorted set in its order, with their scores."""
        parts = self._parts.get(name, ())
        return {member.decode(): float(score) for member, score in zip(parts[::2], parts[1::2], strict=True)}

    def members(self, name: str) -> set[str]:
        return set(self.scores(name))

    def elements(self, name: str) -> set[str]:
        """Return what is in a plain set."""
        return {part.decode() for part in self._parts.get(name, ())}

    def tickets(self, band: int) -> int:
        """Count the tickets in the list that stock Celery, Flower and KEDA measure."""
        name = self._tickets if band == 0 else f"{self._tickets}\x06\x16{band}"
        return self._parts.get(name, []).count(TICKET)

    def listed(self, index: str) -> set[tuple[str, str]]:
        """Return the owner and the serial of every entry in the owners' lists."""
        return {(owner, serial) for owner in self._under(f"{index}:") for serial in self.scores(f"{index}:{owner}")}

    def event_lists(self) -> dict[str, set[str]]:
        """Return the members of every list of events, by its name."""
        names = [
            prefix + rest for prefix in ("events:", "sending:", "pending:", "undelivered:") for rest in self._under(prefix)
        ]
        return {name: self.members(name) for name in (*names, "undelivered", "endpoints")}

    def lines(self) -> list[tuple[str, str, int, str]]:
        """Return version, owner, band and serial of every job in line."""
        found = []
        for line in self._under("ready:"):
            version, _, owner = line.partition(":")
            entries = self.scores(f"ready:{line}").items()
            found += [(version, owner, int(score // WEIGHT), serial) for serial, score in entries]
        return found

    def turns(self) -> dict[tuple[str, int], list[str]]:
        found = {}
        for name in self._under("turns:"):
            version, _, band = name.partition(":")
            found[version, int(band)] = list(self.scores(f"turns:{name}"))
        return found

    def places(self, lines: Iterable[tuple[str, str, int, str]]) -> tuple[dict[str, list[str]], dict[int, int]]:
        places: dict[str, list[str]] = {}
        waiting: Counter[int] = Counter(dict.fromkeys(BANDS, 0))
        for _, _, band, serial in lines:
            places.setdefault(serial, []).append("ready")
            waiting[band] += 1
        for name, band in (("solo", 0), ("shards", 9)):
            for version in self._under(f"{name}:"):
                for serial in self.scores(f"{name}:{version}"):
                    places.setdefault(serial, []).append(name)
                    waiting[band] += 1
        for serial in self.scores("delayed"):
            places.setdefault(serial, []).append("delayed")
        for worker in self._under("held:"):
            for serial in self.hash(f"held:{worker}"):
                places.setdefault(serial, []).append(f"held:{worker}")
        return places, dict(waiting)

    def _under(self, prefix: str) -> Iterator[str]:
        """Return what follows the prefix in every name that has it."""
        return (name.removeprefix(prefix) for name in self._parts if name.startswith(prefix))


def _mislisted(keys: _Keys, index: str, records: dict[str, dict[str, str]]) -> set[str]:
    """What a function that failed leaves of a job without a record harms nobody: such jobs are left out of lists."""

    def owner(serial: str) -> str:
        return records.get(serial, {}).get("owner", "")

    expected = {(owner(serial), serial) for serial in keys.members(index) if owner(serial)}
    return {serial for _, serial in expected ^ keys.listed(index) if owner(serial)}


def _mistagged(keys: _Keys, records: dict[str, dict[str, str]]) -> set[str]:
    """Return the jobs whose tags stand in a list in which they must not, or the other way round."""
    expected = {(owner, f"{tag},{serial}") for serial, raw in records.items() for owner, tag in _tags(raw)}
    listed = keys.listed("tagged") | {("", entry) for entry in keys.members("tagged")}
    return {entry.partition(",")[2] for _, entry in expected ^ listed}


def _tags(raw: dict[str, str]) -> set[tuple[str, str]]:
    tags = filter(None, raw.get("tags", "").split(","))
    return {(owner, tag) for tag in tags for owner in {"", raw.get("owner", "")}}


def _stored(serial: str, raw: dict[str, str], places: dict[str, list[str]], final: set[str]) -> Stored:
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
        owner=raw.get("owner", ""),
        result_ttl_kept=(serial in final) == State(raw["state"]).final,
        dealt_with="replayed_as" in raw or "dismissed" in raw,
        places=tuple(places.get(serial, ())),
    )
