from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator

import pytest

from penstock.client.aio import AsyncClient
from penstock.client.handles.job_handle import JobHandle
from penstock.client.handles.job_handle_aio import AsyncJobHandle
from penstock.client.problems import GatewayUnreachable, JobFailed
from penstock.client.retries import RetryPolicy
from penstock.client.sync import Client
from tests.unit.client.scripted_gateway import JOB_ID, Line, job, playing, problem


def parameters(kind: type, name: str) -> dict[str, object]:
    found = inspect.signature(getattr(kind, name)).parameters
    return {key: value.default for key, value in found.items()}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_the_twins_offer_the_same_calls_with_the_same_arguments() -> None:
    assert public(Client) - {"close"} == public(AsyncClient) - {"aclose"}
    assert public(JobHandle) == public(AsyncJobHandle)
    for name in ("submit", "predict", "map", "job", "jobs", "models", "workers"):
        assert parameters(Client, name) == parameters(AsyncClient, name)
    for name in ("wait", "result", "cancel", "refresh"):
        assert parameters(JobHandle, name) == parameters(AsyncJobHandle, name)


async def test_submit_and_result() -> None:
    with playing(Line(202, job()), Line(200, {"y": 16})) as gateway:
        async with AsyncClient(gateway.url) as client:
            handle = await client.submit("square", {"x": 4})
            assert await handle.result() == {"y": 16}
    assert (handle.id, handle.status) == (JOB_ID, "succeeded")


async def test_a_call_without_an_answer_is_repeated() -> None:
    with playing(Line(hang_up=True), Line(200, {"data": [{"name": "square"}]})) as gateway:
        async with AsyncClient(gateway.url, retry=RetryPolicy(first_wait_s=0.001)) as client:
            assert await client.models() == [{"name": "square"}]


async def test_a_missing_gateway_is_reported_as_unreachable() -> None:
    async with AsyncClient("http://127.0.0.1:9", retry=RetryPolicy(max_attempts=1)) as client:
        with pytest.raises(GatewayUnreachable):
            await client.workers()


async def test_a_failed_job_raises() -> None:
    script = [Line(202, job()), problem(409, "handler_error"), Line(200, job("failed"))]
    with playing(*script) as gateway:
        async with AsyncClient(gateway.url) as client:
            handle = await client.submit("square", 4)
            with pytest.raises(JobFailed):
                await handle.result()


async def test_map_yields_in_order_from_any_kind_of_stream() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(2):
            yield number

    script = [line for n in range(2) for line in (Line(202, job()), Line(200, {"data": [job("succeeded", output=n)]}))]
    with playing(*script) as gateway:
        async with AsyncClient(gateway.url) as client:
            assert [value async for value in client.map("square", numbers(), in_flight=1)] == [0, 1]


async def test_a_cancelled_wait_cancels_the_job_of_a_map() -> None:
    script = [Line(202, job()), *[Line(200, {"data": [job("running")]})] * 20]
    with playing(*script) as gateway:
        async with AsyncClient(gateway.url) as client:
            outputs = client.map("square", [1], in_flight=1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(outputs), timeout=2.0)
    assert "POST /linked/cancel" in gateway.paths()
