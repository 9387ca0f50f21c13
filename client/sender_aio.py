"""Sends a client's calls: a call with its retries, the calls of a flow, a call whose answer comes line by line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import IO, Self

import httpx2

from penstock.client import exchange, flows, protocol
from penstock.client.flows import Flow, Pause, Reply, T
from penstock.client.protocol import Answer, HttpCall
from penstock.client.retries import Retries, RetryBudget, RetryPolicy


class AsyncSender:
    """Its connections to one gateway stay open until `aclose` or the end of an `async with` block."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        *,
        timeout_s: float,
        retry: RetryPolicy | None,
        transport: httpx2.AsyncBaseTransport | None,
    ) -> None:
        self._address = exchange.gateway_address(base_url, api_key, timeout_s)
        self._retries = Retries(retry or RetryPolicy(), RetryBudget())
        self._http = httpx2.AsyncClient(headers=exchange.user_agent(), transport=transport, limits=exchange.CONNECTIONS)

    @property
    def base_url(self) -> str:
        return self._address.base_url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def lines(self, link: str) -> AsyncIterator[str]:
        """The lines of the gateway's file at `link`, none for an empty link. The file is never completely in memory."""
        if link:
            async for line in self.streamed(HttpCall("GET", link)):
                yield line

    async def download(self, link: str, file: IO[bytes]) -> None:
        """Write the gateway's file at `link` into `file` as it arrives; nothing for an empty link."""
        if not link:
            return
        try:
            async with self._http.stream(**self._address.request_arguments(HttpCall("GET", link))) as response:
                if response.status_code >= 400:
                    await response.aread()
                protocol.accepted(exchange.head_of(response))
                async for chunk in response.aiter_bytes():
                    await asyncio.to_thread(file.write, chunk)
        except httpx2.TransportError as error:
            raise self._address.transport_fault(error) from error

    async def streamed(self, call: HttpCall) -> AsyncIterator[str]:
        """The lines of an answer as they come. Raises `GatewayUnreachable` if the connection is lost."""
        try:
            with self._address.open_request(call) as request:
                async with self._http.stream(**request) as response:
                    if response.status_code >= 400:
                        await response.aread()
                    protocol.accepted(exchange.head_of(response))
                    async for line in response.aiter_lines():
                        yield line
        except httpx2.TransportError as error:
            raise self._address.transport_fault(error) from error

    async def send(self, call: HttpCall) -> Answer:
        """The gateway's last answer, with any status, after the retries that the call allows.

        Raises `GatewayUnreachable` if no answer came.
        """
        return await self._retries.asynchronous(call)(self._exchange, call)

    async def follow(self, flow: Flow[T]) -> T:
        """The flow's return value, after all of its steps."""
        try:
            step = next(flow)
            while True:
                step = flow.send(await self._reply(step))
        except StopIteration as end:
            value: T = end.value
            return value

    async def _reply(self, step: HttpCall | Pause) -> Reply:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return Reply(flows.NOTHING, time.monotonic())
        return Reply(await self.send(step), time.monotonic())

    async def _exchange(self, call: HttpCall) -> Answer:
        try:
            with self._address.open_request(call) as request:
                return exchange.answer_of(await self._http.request(**request))
        except httpx2.TransportError as error:
            raise self._address.transport_fault(error) from error
