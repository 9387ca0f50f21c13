from __future__ import annotations

import asyncio
import time

import uvloop

from penstock.loadtest.generator.alarm import open_alarm


def rung_at(*moments: float) -> list[float]:
    """Set the alarm to each of the given moments from now in turn, and return the moments at which the alarm rang."""
    rings: list[float] = []

    async def work() -> None:
        heard = asyncio.Event()

        def ring() -> None:
            rings.append(time.perf_counter() - began_at)
            heard.set()

        alarm = open_alarm(ring)
        began_at = time.perf_counter()
        for moment in moments:
            heard.clear()
            alarm.set(began_at + moment)
            await asyncio.wait_for(heard.wait(), 10.0)
        alarm.close()

    uvloop.run(work())
    return rings


def test_an_alarm_rings_once_for_each_moment_and_never_early() -> None:
    moments = [0.0004, 0.0011, 0.0105]
    rings = rung_at(*moments)
    assert len(rings) == len(moments)
    assert all(rung >= moment for rung, moment in zip(rings, moments, strict=True))


def test_a_moment_that_has_passed_rings_at_once() -> None:
    assert len(rung_at(-5.0)) == 1


def test_setting_it_again_replaces_the_moment_before() -> None:
    async def work() -> int:
        heard = asyncio.Event()
        alarm = open_alarm(heard.set)
        alarm.set(time.perf_counter() + 3_600.0)
        alarm.set(time.perf_counter())
        await asyncio.wait_for(heard.wait(), 10.0)
        alarm.close()
        return 1

    assert uvloop.run(work()) == 1
