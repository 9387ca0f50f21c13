# Generated from client/sender_aio.py by `make sync-client`. Change that file, not this one.
"""Sends a client's calls: a call with its retries, the calls of a flow, a call whose answer comes line by line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Self

import httpx2

from penstock.client import exchange, flows, protocol
from penstock.client.flows import Flow, Pause, Reply, T
from penstock.client.protocol import Answer, HttpCall
from penstock.client.retries import Retries, RetryBudget, RetryPolicy


class Sender:
    """Its connections to one gateway stay open until `close` or the end of a `with` block."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        *,
        timeout_s: float,
        retry: RetryPolicy | None,
        transport: httpx2.BaseTransport | None,
    ) -> None:
        self._address = exchange.gateway_address(base_url, api_key, timeout_s)
        self._retries = Retries(retry or RetryPolicy(), RetryBudget())
        self._http = httpx2.Client(headers=exchange.user_agent(), transport=transport, limits=exchange.CONNECTIONS)

    @property
    def base_url(self) -> str:
        return self._address.base_url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def lines(self, link: str) -> Iterator[str]:
        """The lines of the gateway's file at `link`, none for an empty link. The file is never completely in memory."""
        if link:
            yield from self.streamed(HttpCall("GET", link))

    def download(self, link: str, file: IO[bytes]) -> None:
        """Write the gateway's file at `link` into `file` as it arrives; nothing for an empty link."""
        if not link:
            return
        try:
            with self._http.stream(**self._address.request_arguments(HttpCall("GET", link))) as response:
                if response.status_code >= 400:
                    response.read()
                protocol.accepted(exchange.head_of(response))
                for chunk in response.iter_bytes():
                    file.write(chunk)
        except httpx2.TransportError as error:
            raise self._address.transport_fault(error) from error

    def streamed(self, call: HttpCall) -> Iterator[str]:
        """The lines of an answer as they come. Raises `GatewayUnreachable` if the connection is lost."""
        try:
            with self._address.open_request(call) as request, self._http.stream(**request) as response:
                if response.status_code >= 400:
                    response.read()
                protocol.accepted(exchange.head_of(response))
                yield from response.iter_lines()
        except httpx2.TransportError as error:
            raise self._address.transport_fault(error) from error

    def send(self, call: HttpCall) -> Answer:
        """The gateway's last answer, with any status, after the retries that the call allows.

        Raises `GatewayUnreachable` if no answer came.
        """
        return self._retries.blocking(call)(self._exchange, call)

    def follow(self, flow: Flow[T]) -> T:
        """The flow's return value, after all of its steps."""
        try:
            step = next(flow)
            while True:
                step = flow.send(self._reply(step))
        except StopIteration as end:
            value: T = end.value
            return value

    def _reply(self, step: HttpCall | Pause) -> Reply:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return Reply(flows.NOTHING, time.monotonic())
        return Reply(self.send(step), time.monotonic())

    def _exchange(self, call: HttpCall) -> Answer:
        try:
            with self._address.open_request(call) as request:
                return exchange.answer_of(self._http.request(**request))
        except httpx2.TransportError as error:
            raise self._address.transport_fault(error) from error
