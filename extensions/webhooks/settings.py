"""The settings of webhooks: with which keys events are signed, which URLs may be called, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from penstock.errors import InvalidInput
from penstock.extensions.webhooks.webhook import key_bytes
from penstock.outbound.urls import ANYWHERE, parse_url
from penstock.settings.extension_tables import FILE, ExtensionFields, ExtensionTable
from penstock.settings.keys import Table
from penstock.settings.models import Count, Seconds, UrlRules

if TYPE_CHECKING:
    from penstock.settings.tables import Settings

MOST_KEYS = 2
# With the first attempt these are eight over a day: the last one is cut short, so that it ends when the day does.
RETRY_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0)


def _signing_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    if len(keys) > MOST_KEYS:
        raise ValueError(f"there are {len(keys)} signing keys; one is enough, and two while they are rotated: NEW,OLD")
    for key in keys:
        key_bytes(key)
    return keys


def _base(url: str) -> str:
    if not url:
        return url
    try:
        checked = parse_url(url)
    except InvalidInput as error:
        raise ValueError(error.message) from None
    if "?" in checked.target:
        raise ValueError("public_url is the address of the gateway alone, as in https://models.example.com")
    return url.rstrip("/")


class WebhooksSettings(ExtensionTable, Table):
    """Webhooks are on where `signing_keys` is set. Keys belong into the environment or a file: PENSTOCK_WEBHOOKS__SIGNING_KEYS
    or PENSTOCK_WEBHOOKS__SIGNING_KEYS_FILE. Two are valid at a time, separated by a comma, the new one first.

    `urls` are rules as those of `input_urls`: "*" for https URLs of public hosts, "http://hooks.internal:8000/" for all URLs
    that begin so, at whatever address the host has. The file `ca` has the authorities that are trusted instead of the public
    ones. An attempt takes at most `timeout_s`. An event that was not accepted is sent again after each of `retry_s` seconds in
    turn, and given up once these have passed together, at the latest after a day. An endpoint, the host and port of an owner's
    URLs, is left alone after five failures in a row for `circuit_s` seconds, from the first number doubling to the second. A
    result of more than `max_result_bytes` is a link,
    which begins with `public_url`. An owner may have `max_undelivered` events that wait, per model.
    """

    gone: ClassVar = {
        "concurrency": "it is 64 for each gateway process; more processes send more",
        "give_up_s": "an event is given up once all of webhooks.retry_s have passed, at the latest after a day",
        "per_endpoint": "it is 4",
    }
    signing_keys: Annotated[tuple[str, ...], AfterValidator(_signing_keys)] = Field(default=(), repr=False)
    urls: UrlRules = (ANYWHERE,)
    ca: Annotated[str, FILE] = ""
    timeout_s: Seconds = 15.0
    retry_s: tuple[Seconds, ...] = Field(default=RETRY_S, min_length=1, max_length=20)
    circuit_s: tuple[Seconds, Seconds] = (10.0, 300.0)
    max_result_bytes: int = Field(default=16 * 1024, ge=0, le=1024 * 1024)
    max_undelivered: Count = 10_000
    public_url: Annotated[str, AfterValidator(_base)] = ""

    @property
    def is_on(self) -> bool:
        return bool(self.signing_keys)


class WebhookFields(ExtensionFields, Table):
    """`webhook`: where the events of a model's submits go if neither they nor their key name a URL."""

    webhook: str = ""


class KeyWebhookFields(ExtensionFields, Table):
    """`webhook`: where the events of a key's submits go if they name no URL."""

    webhook: str = ""


def url_of_key(added: Mapping[str, Any]) -> str:
    """Where the events of the submits of a key go by default; empty if nowhere. `added`: its `extension_settings`."""
    return str(added.get("webhook", ""))


def url_of_model(settings: Settings, name: str) -> str:
    """Where the events of a model go by default; empty if nowhere."""
    model: object = settings.models.get(name)
    return model.webhook if isinstance(model, WebhookFields) else ""
