"""A small model of who goes next: three owners with a few jobs each, and two suspects beside one line of other jobs.

A search explores both state by state. For each one that waits all the time, a world counts how often each other one was served
meanwhile; if a rule lets somebody be passed over, the search finds a world in which that count is too high.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

OWNERS = (0, 1, 2)
MOST_JOBS = 2
ENOUGH = 3  # the highest count: a higher one would be no worse


@dataclass(frozen=True)
class Turning:
    """The rules of turns.lua; the design has all rules on."""

    served_goes_last: bool = True
    stale_turn_is_dropped: bool = True


class Owners(NamedTuple):
    """`line`: waiting jobs per owner. `turns`: the owners in order. `passed[a][b]`: how often b was served since a last was."""

    line: tuple[int, ...] = (0, 0, 0)
    turns: tuple[int, ...] = ()
    passed: tuple[tuple[int, ...], ...] = ((0, 0, 0),) * 3
    idle: bool = False  # a claim found nothing although somebody waits


def owner_steps(world: Owners, rules: Turning) -> Iterator[tuple[str, Owners]]:
    for owner in OWNERS:
        if world.line[owner] < MOST_JOBS:
            yield f"{owner} submits", _submit(world, owner)
        if world.line[owner]:
            yield f"{owner} cancels", _forget(world._replace(line=_put(world.line, owner, world.line[owner] - 1)))
    yield "claim", _claim(world, rules)


def passed_over(world: Owners) -> str:
    """Return what is wrong, or "": each owner passes a waiting owner once at most, and a claim finds a job if any waits."""
    if world.idle:
        return "nobody served"
    return "passed over" if any(world.passed[a][b] > 1 for a in OWNERS if world.line[a] for b in OWNERS) else ""


def _put(row: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*row[:at], value, *row[at + 1 :])


def _submit(world: Owners, owner: int) -> Owners:
    turns = world.turns
    if owner not in turns:
        turns = (*turns, owner)
    return world._replace(line=_put(world.line, owner, world.line[owner] + 1), turns=turns)


def _claim(world: Owners, rules: Turning) -> Owners:
    turns = world.turns
    while turns and not world.line[turns[0]]:
        if not rules.stale_turn_is_dropped:
            return world._replace(idle=any(world.line))
        turns = turns[1:]
    if not turns:
        return world._replace(turns=(), idle=any(world.line))
    first, rest = turns[0], turns[1:]
    passed = tuple(_put(row, first, min(row[first] + 1, ENOUGH)) for row in world.passed)
    after = world._replace(
        line=_put(world.line, first, world.line[first] - 1),
        turns=(*rest, first) if rules.served_goes_last else turns,
        passed=tuple((0, 0, 0) if owner == first else passed[owner] for owner in OWNERS),
    )
    return _forget(after)


def _forget(world: Owners) -> Owners:
    """Clear the counts of owners who do not wait, because nobody can pass them over."""
    return world._replace(
        passed=tuple(row if world.line[owner] else (0, 0, 0) for owner, row in zip(OWNERS, world.passed, strict=True))
    )


@dataclass(frozen=True)
class Suspecting:
    """The rules of solo_due in claim.lua; the design has all rules on."""

    others_between: bool = True  # a suspect waits until others have been served since the suspect came
    lost_goes_last: bool = True  # a suspect that loses another worker goes behind the suspects that came before
    suspects_between: bool = True  # others wait until each suspect has run


class Suspects(NamedTuple):
    """`solo`: the suspects in order, each with whether others were served since it came. `others`: whether others wait.

    `runs`: how often each suspect ran since others were served. `batches`: how often others were served since each suspect ran.
    """

    solo: tuple[tuple[int, bool], ...] = ()
    others: bool = False
    runs: tuple[int, ...] = (0, 0)
    batches: tuple[int, ...] = (0, 0)


def suspect_steps(world: Suspects, rules: Suspecting) -> Iterator[tuple[str, Suspects]]:
    if not world.others:
        yield "others come", world._replace(others=True)
    for who in (0, 1):
        if who not in [suspect for suspect, _ in world.solo]:
            yield f"{who} loses workers", world._replace(solo=(*world.solo, (who, False)))
    due = bool(world.solo) and (world.solo[0][1] or not rules.others_between or not world.others)
    if due and rules.suspects_between:
        yield from _run_suspect(world, rules)
    elif world.others:
        solo = tuple((who, True) for who, _ in world.solo)
        batches = tuple(min(world.batches[who] + 1, ENOUGH) if (who, True) in solo else 0 for who in (0, 1))
        yield "others run", Suspects(solo, others=False, batches=batches)
        yield "others run, more wait", Suspects(solo, others=True, batches=batches)


def _run_suspect(world: Suspects, rules: Suspecting) -> Iterator[tuple[str, Suspects]]:
    (who, _), *rest = world.solo
    counted = 1 if world.others else 0
    runs = _put(world.runs, who, min(world.runs[who] + counted, ENOUGH))
    after = world._replace(solo=tuple(rest), runs=runs, batches=_put(world.batches, who, 0))
    yield f"{who} ends", after._replace(runs=_put(runs, who, 0))
    again = (*rest, (who, False)) if rules.lost_goes_last else ((who, False), *rest)
    yield f"{who} loses its worker", after._replace(solo=tuple(again))


def held_up(world: Suspects) -> str:
    """Return what is wrong, or ""."""
    if world.others and max(world.runs) > 1:
        return "a suspect ran twice while others waited"
    if any(world.batches[who] > 1 for who, _ in world.solo):
        return "others were served twice while a suspect waited"
    return ""
