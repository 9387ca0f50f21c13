"""The store's rules in miniature: one job, two workers, and everything that can go wrong between them, as a graph of states.

Every function of the store is one action here. A killed worker, a zombie, a lost reply, and a lease that runs out at the worst
moment need no code of their own: they all appear when any action may follow any other. `Rules` switches single guards off, so
that a search can prove that each guard is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MAX_ATTEMPTS, MAX_CRASHES, MAX_EPOCH = 3, 2, 4
# These limits are lower than the store's, so that the search ends; the rule is the same.
SUSPECT_LOSSES, MAX_IN_A_ROW, MAX_LOSSES = 1, 2, 3
LIVE = {"queued", "leased", "delayed"}
PLACES = {"queued": ({"ready"}, {"solo"}), "leased": ({"leases"},), "delayed": ({"delayed"},)}


@dataclass(frozen=True)
class Rules:
    """The guards of the store. The design has all guards on; `power_cuts` lets the store fall back to its last fsync.

    Without a `reader` nobody remembers a final view, so no view can be retracted (I8 is waived).
    """

    fence: bool = True  # a settling call must bring the current token
    state_check: bool = True  # cancel leaves a final job alone
    atomic_claim: bool = True
    attempt_limit: bool = True
    crash_limit: bool = True
    loss_limit: bool = True
    row_limit: bool = True  # limits the losses in a row with no other worker lost in between
    dedup: bool = True
    prompt_cancel: bool = True  # cancel takes a waiting job out of its queue in the same step
    cancel_wins: bool = True  # a flagged job cannot succeed
    clear_token: bool = True  # sweep forgets the token of a lease that it takes back
    nonce: bool = True  # no token is ever handed out twice, even after a rollback
    power_cuts: int = 0
    reader: bool = True


class Job(NamedTuple):
    """The record and its index entries: a power cut may roll back both. Tokens are small numbers; 0 means no token."""

    state: str = ""
    places: frozenset[str] = frozenset()
    token: int = 0
    final_token: int = 0
    epoch: int = 0
    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    in_a_row: int = 0
    flagged: bool = False
    rows: int = 0
    copies: int = 0


class World(NamedTuple):
    """`held`: each worker's last known token. `seen`: the final view of a client. `foul`: a rule that the last action broke."""

    job: Job = Job()
    held: tuple[int, int] = (0, 0)
    popper: int = -1
    late: bool = False
    seen: tuple[str, int] | None = None
    disk: Job = Job()
    cuts: int = 0
    foul: str = ""


Step = tuple[str, World]


def steps(world: World, rules: Rules) -> Iterator[Step]:
    """Yield every action possible now, by name, with the world that the action leads to."""
    yield from _client(world, rules)
    yield from _sweeper(world, rules)
    yield from _power(world, rules)
    for who in (0, 1):
        yield from _worker(world, rules, who)


def representative(world: World, rules: Rules) -> World:
    """Return the one of all worlds like this one that a search looks at: no action and no invariant tells them apart.

    Workers that change places make no difference, and a nonce is compared with others and nothing else: any other number would
    do. A bare epoch is counted on from, so it keeps its number.
    """
    job, disk, seen = world.job, world.disk, world.seen
    given = (job.token, job.final_token, disk.token, disk.final_token, seen[1] if seen else 0, *world.held)
    counted = _counted if rules.nonce else tuple
    names = min(counted(given), counted((*given[:5], given[6], given[5])))
    if names == given and world.popper < 1:
        return world
    return world._replace(
        job=job._replace(token=names[0], final_token=names[1]),
        disk=disk._replace(token=names[2], final_token=names[3]),
        seen=(seen[0], names[4]) if seen else None,
        held=(names[5], names[6]),
        # Who has popped the job and not recorded it holds no token.
        popper=-1 if world.popper < 0 else names[5:].index(0),
    )


def _counted(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens with new names: numbers in the order in which they stand here; 0 stays no token."""
    names = {0: 0}
    return tuple([names.setdefault(token, len(names)) for token in tokens])


def broken(world: World) -> str:
    """Return the first invariant that does not hold, or ""."""
    job = world.job
    checks = {
        world.foul: bool(world.foul),
        "I3": _misplaced(job) and world.popper < 0,
        "I3 orphan": world.popper >= 0 and job.state == "queued",
        "I4": job.attempts - job.losses > MAX_ATTEMPTS,
        "loss limit": job.losses >= MAX_LOSSES and job.state in LIVE,
        "row limit": job.in_a_row >= MAX_IN_A_ROW and job.state in LIVE,
        "crash limit": job.crashes > MAX_CRASHES or (job.crashes == MAX_CRASHES and job.state in LIVE),
        "I5": job.rows != (1 if _final(job) else 0),
        "I7": world.held[0] == world.held[1] != 0,
        "I8": world.seen is not None and world.seen != (job.state, job.final_token),
        "I9": job.copies > 1,
    }
    return next((name for name, foul in checks.items() if foul), "")


def _final(job: Job) -> bool:
    return job.state not in LIVE and job.state != ""


def _misplaced(job: Job) -> bool:
    return set(job.places) not in PLACES.get(job.state, (set(),))


def _to(job: Job, state: str, **changes: object) -> Job:
    """Return the job after a legal move: in the index of its new state, without a token."""
    place = {"queued": "solo" if job.crashes or job.losses >= SUSPECT_LOSSES else "ready", "delayed": "delayed"}.get(state)
    rows = job.rows + (state not in LIVE)
    moved = job._replace(state=state, places=frozenset({place} if place else ()), token=0, rows=rows)
    return moved._replace(**changes)  # type: ignore[arg-type]


def _client(world: World, rules: Rules) -> Iterator[Step]:
    job = world.job
    if not job.state:
        yield "submit", world._replace(job=_to(job, "queued", copies=1))
        return
    if not rules.dedup and job.copies < 2:
        yield "submit again", world._replace(job=job._replace(copies=job.copies + 1))
    yield "cancel", world._replace(**_cancel(job, rules))  # type: ignore[arg-type]
    if not world.late:
        yield "deadline passes", world._replace(late=True)
    if rules.reader and _final(job) and world.seen is None:
        yield "read", world._replace(seen=(job.state, job.final_token))


def _cancel(job: Job, rules: Rules) -> dict[str, object]:
    if job.state == "leased":
        return {"job": job._replace(flagged=True)}
    if _final(job) and rules.state_check:
        return {}
    ended = _to(job, "cancelled")
    if not rules.prompt_cancel:
        ended = ended._replace(places=job.places)
    return {"job": ended, "foul": "I2" if _final(job) else ""}


def _sweeper(world: World, rules: Rules) -> Iterator[Step]:
    job = world.job
    if job.state == "leased":
        yield "sweep", world._replace(job=_take_back(world, rules))
        yield "overrun", world._replace(job=_crash(job, rules) if not job.flagged else _to(job, "cancelled"))
    # Beside power cuts this action is left out: it can only let a job live longer, and it would triple that search.
    if job.in_a_row and job.state in LIVE and not rules.power_cuts:
        yield "another worker is lost", world._replace(job=job._replace(in_a_row=0))
    if job.state == "delayed" and not world.late:
        yield "promote", world._replace(job=_to(job, "queued"))
    if job.state in ("queued", "delayed") and world.late and world.popper < 0:
        yield "expire", world._replace(job=_to(job, "expired"))


def _take_back(world: World, rules: Rules) -> Job:
    job = world.job
    kept = {} if rules.clear_token else {"token": job.token}
    if job.flagged:
        return _to(job, "cancelled", **kept)
    job = job._replace(losses=job.losses + 1, in_a_row=job.in_a_row + 1)
    too_often = job.losses >= MAX_LOSSES and rules.loss_limit
    if too_often or (job.in_a_row >= MAX_IN_A_ROW and rules.row_limit):
        return _to(job, "dead", **kept)
    if world.late:
        return _to(job, "expired", **kept)
    return _to(job, "queued", **kept)


def _crash(job: Job, rules: Rules, token: int = 0) -> Job:
    job = job._replace(crashes=job.crashes + 1)
    spent = job.crashes >= MAX_CRASHES and rules.crash_limit
    if spent or (job.attempts - job.losses >= MAX_ATTEMPTS and rules.attempt_limit):
        return _to(job, "dead", final_token=token)
    return _to(job, "queued")


def _power(world: World, rules: Rules) -> Iterator[Step]:
    if world.cuts >= rules.power_cuts:
        return
    if world.disk != world.job:
        yield "fsync", world._replace(disk=world.job)
    yield "power cut", world._replace(job=world.disk, cuts=world.cuts + 1)


def _worker(world: World, rules: Rules, who: int) -> Iterator[Step]:
    token = world.held[who]
    if world.popper == who:
        yield "record", world._replace(job=_lease(world, rules), held=_put(world, who, _fresh(world, rules)), popper=-1)
        yield "crash", world._replace(popper=-1)
    elif not token:
        yield from _claim(world, rules, who)
    else:
        yield "crash", world._replace(held=_put(world, who, 0))
        for name, job, foul in _settle(world, rules, token):
            after = world._replace(job=job, foul=foul)
            yield f"{name}, reply lost", after
            yield name, after._replace(held=_put(after, who, 0))


def _claim(world: World, rules: Rules, who: int) -> Iterator[Step]:
    job = world.job
    if not job.places & {"ready", "solo"} or job.epoch >= MAX_EPOCH:
        return
    if world.late and job.state == "queued":
        yield "claim finds it late", world._replace(job=_to(job, "expired"))
    elif not rules.atomic_claim:
        yield "pop", world._replace(job=job._replace(places=frozenset()), popper=who)
    else:
        after = world._replace(job=_lease(world, rules), foul="I2" if _final(job) else "")
        yield "claim", after._replace(held=_put(world, who, _fresh(world, rules)))
        yield "claim, reply lost", after


def _lease(world: World, rules: Rules) -> Job:
    job = world.job
    epoch = job.epoch + 1 if not rules.nonce else 0
    return job._replace(
        state="leased", places=frozenset({"leases"}), token=_fresh(world, rules), attempts=job.attempts + 1, epoch=epoch
    )


def _fresh(world: World, rules: Rules) -> int:
    """Return a new token: the bare epoch, or (standing for a nonce) the smallest number that nobody remembers."""
    if not rules.nonce:
        return world.job.epoch + 1
    known = {world.job.token, world.job.final_token, world.disk.token, world.disk.final_token, *world.held}
    known.add(world.seen[1] if world.seen else 0)
    return next(number for number in range(1, 9) if number not in known)


def _put(world: World, who: int, token: int) -> tuple[int, int]:
    return (token, world.held[1]) if who == 0 else (world.held[0], token)


def _settle(world: World, rules: Rules, token: int) -> Iterator[tuple[str, Job, str]]:
    """Yield what finish, retry and release do with this token: name, job after, rule broken. A refusal changes nothing."""
    job = world.job
    if job.state != "leased" or (rules.fence and job.token != token):
        yield "stale", job, ""
        return
    foul = "" if job.token == token else "I1"
    if job.flagged and rules.cancel_wins:
        yield "settle cancelled", _to(job, "cancelled", final_token=token), foul
        return
    spent = job.attempts - job.losses >= MAX_ATTEMPTS and rules.attempt_limit
    yield "finish", _to(job, "succeeded", final_token=token), foul or ("rule 7" if job.flagged else "")
    yield "fail", _to(job, "failed", final_token=token), foul
    yield "retry", _to(job, "failed", final_token=token) if spent else _to(job, "delayed"), foul
    yield "release", _to(job, "queued", attempts=job.attempts - 1), foul
    yield "release crashed", _crash(job, rules, token), foul
