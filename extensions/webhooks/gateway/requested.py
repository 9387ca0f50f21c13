"""Which webhook a submit gets: the one that it names, else that of its key, else that of its model."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.ops import prefix
from penstock.errors import ConfigError, InvalidInput, QuotaSpent
from penstock.extensions.webhooks.settings import WebhooksSettings, url_of_key, url_of_model
from penstock.extensions.webhooks.store.outbox import AsyncOutbox
from penstock.extensions.webhooks.webhook import ENDS, JOB_EVENTS, RUN_EVENTS, Webhook, letters_of
from penstock.gateway.auth.keys import Caller
from penstock.gateway.runs.request import RunMembers
from penstock.job import Job
from penstock.outbound.urls import is_listed, is_public, parse_url
from penstock.settings.tables import Settings

_REFUSAL = "this gateway calls no URL such as {url}"
_ON = "The operator sets webhooks.signing_keys; `penstock webhooks new-key` makes one."
_RULES = "The operator names hosts that may be called in webhooks.urls; all others are called by https on port 443 alone."


def webhook_of(
    settings: Settings,
    url: str,
    events: Sequence[str] = (),
    *,
    caller: Caller,
    model: str,
    known: Mapping[str, str] = JOB_EVENTS,
    letters: str = "",
) -> Webhook | None:
    """`letters`: the wanted events, in place of `events`. `known`: the events that there may be.

    Raises `InvalidInput` for a URL that may not be called, for an unknown event, and where webhooks are off.
    """
    if not url and events:
        raise InvalidInput(
            "webhook_events says which events are sent, and no webhook says where", hint="Name a URL as webhook."
        )
    url = url or url_of_key(caller.extension_settings) or url_of_model(settings, model)
    if not url:
        return None
    table = settings.extension(WebhooksSettings)
    if not table.is_on:
        raise InvalidInput("webhooks are off on this gateway, so nothing was stored", hint=_ON)
    check_url(url, table.urls)
    return Webhook(url, letters or _letters(events, known), table.max_undelivered)


def run_members(settings: Settings) -> RunMembers:
    """What a body that starts a run may say of its webhook."""

    def words(body: Any, caller: Caller, model: str) -> dict[str, str]:
        hook = webhook_of(settings, body.webhook, body.webhook_events, caller=caller, model=model, known=RUN_EVENTS)
        return hook.word_of(caller.owner) if hook else {}

    schema = {
        "webhook": {"type": "string", "description": "The URL to which the run's end is sent"},
        "webhook_events": {"type": "array", "items": {"enum": list(RUN_EVENTS)}},
    }
    return RunMembers((("webhook", str, ""), ("webhook_events", list[str], [])), schema, words)


async def kept_webhook(settings: Settings, store: AsyncStore, old: Job) -> Webhook | None:
    """The webhook of a job that was stored before, if it had one and webhooks are on."""
    table = settings.extension(WebhooksSettings)
    if not table.is_on:
        return None
    log = (await AsyncOutbox(store, prefix(old.id.queue)).logs([old.id.serial])).get(old.id.serial)
    return None if log is None else Webhook(log.url, log.letters, table.max_undelivered)


def too_many_undelivered(model: str) -> QuotaSpent:
    """The error for a submit of an owner whose receivers are so far behind that no further job may have a webhook."""
    return QuotaSpent(
        f"too many events of this owner wait to be delivered (model {model}), so the job was not stored",
        retry_after_s=60.0,
        hint="`penstock webhooks log JOB` shows why an event waits; the operator may raise webhooks.max_undelivered.",
    )


def check_url(url: str, rules: Sequence[str]) -> None:
    """Raises `InvalidInput` for a URL that may not be called. A name is looked up, and checked, when it is called."""
    try:
        checked = parse_url(url)
        listed = is_listed(checked, rules, refusal=_REFUSAL)
        if not listed and _is_inside(checked.host):
            raise InvalidInput(f"{checked.host} is no public address")
    except InvalidInput as error:
        raise InvalidInput(
            f"the webhook cannot be used: {error.message}",
            errors=[{"pointer": "/webhook", "detail": error.message}],
            hint=_RULES,
        ) from None


def check_defaults(urls: Mapping[str, str], table: WebhooksSettings) -> None:
    """Raises `ConfigError` for defaults that no submit could use. `urls`: by the words for their setting."""
    is_on = table.is_on
    faults = [] if is_on or not urls else [f"{next(iter(urls))}: webhooks are off: set webhooks.signing_keys"]
    for setting, url in urls.items():
        try:
            check_url(url, table.urls)
        except InvalidInput as error:
            faults.append(f"{setting}: {error.message}")
    if faults:
        raise ConfigError("these webhooks cannot be used:", faults=faults, hint=_ON if not is_on else _RULES)


def _letters(events: Sequence[str], known: Mapping[str, str]) -> str:
    unknown = [event for event in events if event not in known]
    if unknown:
        raise InvalidInput(
            f"there is no event {unknown[0][:80]!r}",
            errors=[{"pointer": "/webhook_events", "detail": f"must be some of {', '.join(known)}"}],
            hint=f"The events are {', '.join(known)}.",
        )
    return letters_of(events, known) or ENDS


def _is_inside(host: str) -> bool:
    """Whether the host is written as an address that is not public. Other ways of writing it are found when it is looked up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return not is_public(host)
