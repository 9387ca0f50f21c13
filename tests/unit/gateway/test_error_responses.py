"""What the wording of an error does to the error."""

from __future__ import annotations

import asyncio
import sys

from penstock.errors import StoreUnavailable
from penstock.gateway.error_responses import problem_of


def refused() -> None:
    raise StoreUnavailable("no replica has written this to its disk")


async def test_a_task_goes_on_after_an_error_that_it_handed_to_a_request() -> None:
    """Regression: the frames of a worded error were cleared, and with them a task that had caught it: a gateway whose store had
    refused one write after a failover answered no later one.
    """
    waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask_again_and_again() -> str:
        try:
            refused()
        except StoreUnavailable as error:
            waited.set_exception(error)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "went on"

    asking = asyncio.create_task(ask_again_and_again())
    try:
        await waited
    except StoreUnavailable as error:
        problem_of(error, {"path": "/v1/models/m/jobs", "headers": []}, None, ())
    assert await asyncio.wait_for(asking, 5.0) == "went on"


def test_a_worded_error_keeps_no_frame_and_so_no_body() -> None:
    """Regression: an error that its own frame names forms a cycle with it, so bodies stayed until a collection."""
    body = bytearray(1_000)

    def refuse(given: bytearray) -> None:
        cause = None
        try:
            refused()
        except StoreUnavailable as error:
            cause = error
        assert given
        assert cause is not None
        raise RuntimeError("behind it") from cause

    before = sys.getrefcount(body)
    try:
        refuse(body)
    except RuntimeError as error:
        problem_of(error, {"path": "/", "headers": []}, None, ())
    assert sys.getrefcount(body) == before
