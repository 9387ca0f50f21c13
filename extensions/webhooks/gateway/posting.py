"""One POST to a receiver: to an address that was checked, without proxies, redirects and cookies, and within a time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping

import httpx2

from penstock.errors import ConfigError, InvalidInput
from penstock.extensions.webhooks.gateway.attempts import NOT_ALLOWED, ReceiverReply, retry_after_s
from penstock.extensions.webhooks.settings import WebhooksSettings
from penstock.outbound.pinned import Resolve, callable_addresses, resolve, send_pinned, trust
from penstock.outbound.urls import is_listed, parse_url

# The receiver's answer is neither kept nor shown. It is read only to see whether it is complete.
_MOST_BYTES = 64 * 1024
_NO_RULE = "no rule allows {url}"
LookUp = asyncio.Future[list[str]]


class Poster:
    """Raises `ConfigError` for certificates that cannot be read."""

    def __init__(self, webhooks: WebhooksSettings, *, resolve: Resolve = resolve) -> None:
        self._rules = webhooks.urls
        self._timeout_s = webhooks.timeout_s
        self._trust = _trust(webhooks.ca)
        self._resolve = resolve

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, on_look_up: Callable[[LookUp], None]
    ) -> ReceiverReply:
        """Never raises for anything that the receiver, its name or its network does.

        `on_look_up` gets the look-up of the receiver's name, which has a thread until it is done, also beyond the time-out.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(url, headers, body, on_look_up)
        except TimeoutError:
            return ReceiverReply(failure="timeout")
        except InvalidInput:
            return ReceiverReply(failure="no_public_address")
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError) as error:
            return ReceiverReply(failure=_failure(error))

    async def _post(
        self, url: str, headers: Mapping[str, str], body: bytes, on_look_up: Callable[[LookUp], None]
    ) -> ReceiverReply:
        try:
            # The rules may have changed since the submit.
            checked = parse_url(url)
            listed = is_listed(checked, self._rules, refusal=_NO_RULE)
        except InvalidInput:
            return ReceiverReply(failure=NOT_ALLOWED)
        # A name may lead elsewhere at each attempt.
        look_up = asyncio.ensure_future(asyncio.to_thread(self._resolve, checked.host, checked.port))
        on_look_up(look_up)
        addresses = callable_addresses(checked, await asyncio.shield(look_up), listed=listed)
        # A client for each attempt, so that no cookie of one owner's receiver is sent to another's.
        async with httpx2.AsyncClient(verify=self._trust, trust_env=False) as client:
            answer = await send_pinned(
                client, "POST", checked, addresses, within_s=self._timeout_s, headers=headers, content=body
            )
            try:
                await _read(answer)
            finally:
                await answer.aclose()
        pause_s = retry_after_s(answer.headers.get("retry-after"), answer.headers.get("date"))
        return ReceiverReply(answer.status_code, retry_after_s=pause_s)


def _trust(ca: str) -> ssl.SSLContext:
    try:
        return trust(ca)
    except OSError as error:
        raise ConfigError(
            f"webhooks.ca: no certificates can be read from {ca}: {error.strerror or error}", hint="Name a file in PEM."
        ) from error


async def _read(answer: httpx2.Response) -> None:
    left = _MOST_BYTES
    async for chunk in answer.aiter_raw():
        left -= len(chunk)
        if left < 0:
            return


def _failure(error: BaseException | None) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "timeout"
    if isinstance(error, (httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.WriteError)):
        return "closed"
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return "tls" if error is not None else "unreachable"
