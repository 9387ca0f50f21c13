"""The API keys among the settings, and the rule that a gateway beyond loopback serves only callers with a key."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    create_model,
)

from penstock.access import KEY_ID, OWNER, Key, Role, is_weak
from penstock.errors import ConfigError
from penstock.settings.extension_tables import key_fields
from penstock.settings.faults import explain
from penstock.words import plural


class Table(BaseModel):
    """Base of all settings tables. An unknown setting is a fault, because a misspelt limit would otherwise go unnoticed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


class Whole:
    """Annotates a table to which extensions add fields. `of` gives the whole class, which is made at the first check."""

    def __init__(self, of: Callable[[], type[BaseModel]]) -> None:
        self.of = of

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler.generate_schema(self.of())


def _id(text: str) -> str:
    if not KEY_ID.fullmatch(text):
        raise ValueError("ids are 1 to 32 lower-case letters, digits, '_' or '-', and start with a letter or digit")
    return text


def _owner(text: str) -> str:
    if text and not OWNER.fullmatch(text):
        raise ValueError("owners are 1 to 64 letters, digits, '_', '.' or '-', and start with a letter or digit")
    return text


def _hash(text: str) -> str:
    # No message repeats the text, because a user may have put the secret itself here by mistake.
    if len(text) != 64 or not set(text.lower()) <= set("0123456789abcdef"):
        raise ValueError("must be the SHA-256 of the secret, 64 hexadecimal digits; `penstock keys new NAME --toml` prints it")
    if is_weak(text):
        raise ValueError("is the hash of an example or of a common word; make a key with `penstock keys new NAME --toml`")
    return text.lower()


def _some(roles: tuple[Role, ...]) -> tuple[Role, ...]:
    if not roles:
        raise ValueError(f"name at least one of {', '.join(Role)}")
    return roles


class KeySettings(Table):
    """One `[[keys]]` table, as `penstock keys new --toml` writes it. Without `owner`, jobs belong to the id of the key.
    Extensions add fields: `key_class`.
    """

    id: Annotated[str, AfterValidator(_id)]
    sha256: Annotated[str, AfterValidator(_hash)] = Field(repr=False)
    roles: Annotated[tuple[Role, ...], AfterValidator(_some)]
    owner: Annotated[str, AfterValidator(_owner)] = ""
    rate_per_s: float = Field(default=100.0, gt=0)
    burst: int = Field(default=200, ge=1)
    max_open_jobs: int | None = Field(default=None, ge=1)
    expires_at: AwareDatetime | None = None

    def key(self) -> Key:
        return Key(
            id=self.id,
            sha256=self.sha256,
            roles=frozenset(self.roles),
            owner=self.owner or self.id,
            rate_per_s=self.rate_per_s,
            burst=self.burst,
            max_open_jobs=self.max_open_jobs,
            expires_at=self.expires_at.timestamp() if self.expires_at else None,
            extension_settings={name: getattr(self, name) for name in added_key_settings()},
        )


@cache
def key_class() -> type[KeySettings]:
    """The table of a key with the fields of the installed extensions."""
    return create_model("KeySettings", __base__=(KeySettings, *key_fields()))


def added_key_settings() -> list[str]:
    """The names of the settings that extensions add to keys."""
    return [name for name in key_class().model_fields if name not in KeySettings.model_fields]


def _all_different(keys: tuple[KeySettings, ...]) -> tuple[KeySettings, ...]:
    twice = [name for name, count in Counter(key.id for key in keys).items() if count > 1]
    if twice:
        raise ValueError(f"two keys have the id {twice[0]!r}; every key needs its own")
    return keys


Keys = Annotated[tuple[Annotated[KeySettings, Whole(key_class)], ...], AfterValidator(_all_different)]


def declared(table: Mapping[str, Any]) -> KeySettings:
    """Read one key from its table alone; raises `ConfigError` with every fault."""
    try:
        return key_class().model_validate(table)
    except ValidationError as invalid:
        raise ConfigError("this key cannot be used:", faults=explain(invalid, key_class(), {})) from None


class Credentials(NamedTuple):
    """What callers may send instead of API keys: `what` it is, and `where` it is kept."""

    what: str
    where: Path


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def loopback_names(host: str) -> frozenset[str]:
    """The Host names that a server bound to `host` answers to; an empty set means any.

    They are for loopback only, against DNS rebinding: elsewhere a rebound page has no key, and names may be many.
    """
    return frozenset({"localhost", "127.0.0.1", "[::1]", host.lower()}) if is_loopback(host) else frozenset()


def local_url(host: str, port: int) -> str:
    """The URL at which this machine reaches a server that listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{reachable}:{port}"


def access_rule(
    host: str,
    keys: Sequence[KeySettings],
    *,
    beside: Credentials | None = None,
    setting: str = "gateway.host",
    now: datetime | None = None,
) -> str:
    """Describe for the start-up line who is served; raises `ConfigError` if the whole network would be. `beside`:
    what callers may send instead of keys.
    """
    if keys and all(key.expires_at and key.expires_at <= (now or datetime.now(UTC)) for key in keys):
        raise ConfigError("every API key has expired", hint="Put what `penstock keys new NAME --toml` prints into [[keys]].")
    if keys:
        owners = {key.owner or key.id for key in keys}
        rule = f"API keys required ({plural(len(keys), 'key')}, {plural(len(owners), 'owner')})"
        return rule if beside is None else f"{rule}, or {beside.what} of {beside.where}"
    if beside is not None:
        return f"{beside.what} required, those of {beside.where}"
    if is_loopback(host):
        return "open to every program on this machine, loopback only"
    raise ConfigError(
        f"{setting} is {host!r} and there are no API keys: anyone on the network could submit and read jobs",
        hint="Run `penstock keys new NAME --role submit,read --toml` and put what it prints into [[keys]] of penstock.toml "
        f"(or a file named by PENSTOCK_KEYS_FILE), or set {setting} to 127.0.0.1.",
    )
