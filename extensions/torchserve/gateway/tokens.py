"""TorchServe's tokens: a file with three keys, two of which expire, made and renewed by the gateway.

Every gateway process reads the file again when it changes, so a token that one of them renewed counts at all of them.
"""

# D104: docs/design/protocols.md
from __future__ import annotations

import fcntl
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from penstock.access import Role
from penstock.errors import ConfigError
from penstock.gateway.auth.keys import Caller

log = structlog.get_logger(__name__)

API, INFERENCE, MANAGEMENT = "API", "inference", "management"
# Those that may be renewed, in the order in which TorchServe writes them.
RENEWABLE = (MANAGEMENT, INFERENCE)
OWNER = "torchserve"
# TorchServe's own have 48 bits.
_BYTES = 32
_EXPIRES = "expiration time"
_MOST_BYTES = 64 * 1024
_PRIVATE = 0o600
_ROLES = {
    INFERENCE: frozenset({Role.SUBMIT, Role.READ}),
    MANAGEMENT: frozenset({Role.READ, Role.MANAGE}),
    API: frozenset[Role](),
}


@dataclass(frozen=True, slots=True)
class AccessToken:
    """`expires_at`: Unix seconds; None: never."""

    key: str
    expires_at: float | None = None


Tokens = dict[str, AccessToken]
# The state of a file: inode, time of the last change, size.
Mark = tuple[int, int, int]


class TokenFile:
    """`is_alone`: callers with a token share the gateway with no other owners. `wall` gives Unix seconds."""

    def __init__(self, path: Path, *, lifetime_s: float, is_alone: bool, wall: Callable[[], float]) -> None:
        self._path = path
        self._lifetime_s = lifetime_s
        self._is_alone = is_alone
        self._wall = wall
        self._tokens: Tokens = {}
        self._mark: Mark | None = None

    def open(self) -> TokenFile:
        """Make the file unless there is one, and renew what has expired in it. Raises `ConfigError` if it cannot be used."""
        try:
            # A file that lacks nothing may lie where this user cannot write.
            if self._lacking():
                with self._locked():
                    self._complete()
            self._tokens, self._mark = self._read(), _mark(self._path)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"torchserve.key_path: {self._path} cannot be used: {error}",
                hint="Name a file that this user may write, or delete it: a new one is made.",
            ) from error
        return self

    def caller(self, token: bytes) -> Caller | None:
        """The caller with this token; None if it is unknown or has expired."""
        self._refresh()
        # All tokens are compared, so that the time of a refusal reveals nothing.
        fitting = [name for name, known in self._tokens.items() if hmac.compare_digest(known.key.encode(), token)]
        name = next((name for name in fitting if self._is_valid(self._tokens[name])), None)
        if name is None:
            return None
        key_id = "" if self._is_alone and name != API else f"{OWNER}-{name}"
        return Caller(OWNER, _ROLES[name], key_id, has_token=True)

    def is_api(self, caller: Caller) -> bool:
        return caller.has_token and caller.key_id == f"{OWNER}-{API}"

    def renew(self, name: str) -> None:
        """Replace the token of this name; the old one no longer counts. Raises `OSError` or `ValueError`."""
        with self._locked():
            self._write({**self._read(), name: self._fresh(name)})
        self._refresh()
        log.info("torchserve_token_renewed", token=name, path=str(self._path))

    def _lacking(self) -> list[str]:
        keys = self._read() if self._path.exists() else {}
        return [name for name in (*RENEWABLE, API) if not self._is_valid(keys.get(name))]

    def _complete(self) -> None:
        """Add the missing tokens. Those that another process has just made stay."""
        if lacking := self._lacking():
            keys = self._read() if self._path.exists() else {}
            self._write({**keys, **{name: self._fresh(name) for name in lacking}})

    def _fresh(self, name: str) -> AccessToken:
        token = AccessToken(secrets.token_urlsafe(_BYTES))
        return token if name == API else replace(token, expires_at=self._wall() + self._lifetime_s)

    def _is_valid(self, token: AccessToken | None) -> bool:
        return token is not None and (token.expires_at is None or token.expires_at > self._wall())

    def _refresh(self) -> None:
        """The file decides. While it cannot be read, the tokens that were read last count until they expire."""
        mark = _mark(self._path)
        if mark == self._mark:
            return
        # A file that cannot be read is looked at again once it changes, and is logged once.
        self._mark = mark
        try:
            self._tokens = self._read()
        except (OSError, ValueError) as error:
            log.warning("torchserve_tokens_unreadable", path=str(self._path), reason=str(error))

    def _read(self) -> Tokens:
        """Raises `OSError`, and `ValueError` for what TorchServe would not have written."""
        if self._path.stat().st_mode & 0o077:
            raise ValueError("others than its owner may read it; chmod 600")
        with self._path.open("rb") as file:
            return parsed(file.read(_MOST_BYTES))

    def _write(self, tokens: Tokens) -> None:
        """At once, so that no reader sees half of it."""
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
        with os.fdopen(handle, "w") as file:
            file.write(written(tokens))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, of all processes. The lock ends with its process."""
        handle = os.open(self._path.with_name(f".{self._path.name}.lock"), os.O_RDWR | os.O_CREAT, _PRIVATE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def written(tokens: Tokens) -> str:
    """The file as TorchServe writes it."""
    table: dict[str, dict[str, str]] = {}
    for name in (*RENEWABLE, API):
        token = tokens[name]
        table[name] = {"key": token.key} | ({} if token.expires_at is None else {_EXPIRES: _moment(token.expires_at)})
    return json.dumps(table, indent=2)


def parsed(text: bytes) -> Tokens:
    """Raises `ValueError` for anything else than such a file."""
    table = json.loads(text)
    if not isinstance(table, dict):
        raise ValueError("it holds no JSON object")
    return {name: _token(name, table[name]) for name in (*RENEWABLE, API) if name in table}


def _token(name: str, entry: Any) -> AccessToken:
    key = entry.get("key") if isinstance(entry, dict) else None
    if not isinstance(key, str) or not key.isascii() or not key.strip():
        raise ValueError(f"its {name} has no key")
    moment = entry.get(_EXPIRES)
    if name == API:
        return AccessToken(key)
    if not isinstance(moment, str):
        raise ValueError(f'its {name} has no "{_EXPIRES}"')
    return AccessToken(key, datetime.fromisoformat(moment).timestamp())


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _mark(path: Path) -> Mark | None:
    """None if there is no such file, or it cannot be inspected."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
