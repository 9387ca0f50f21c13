"""The caller of a request, by its API key: checks keys, limits each one's rate and its permits, and slows down guessing."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from penstock.access import Key, Role
from penstock.errors import RateLimited, StoreUnavailable, Unauthorized
from penstock.gateway.asgi.problems import GatewayBusy
from penstock.gateway.auth.rate_limit import AddressBuckets, SharedBucket

log = structlog.get_logger(__name__)

# Refusals per address before they become 429. A valid key is never refused because others at its address guess.
GUESSES_PER_S = 1.0
GUESSES_BURST = 20.0
MAX_ADDRESSES = 4_096
MAX_REMEMBERED = 1_024
# The cost of reading one job, against 1 for any other request: callers are asked to poll.
POLL_COST = 0.1
# The cost of each further job of one request: jobs share the request, the caller's checks, and mostly the sync.
FURTHER_JOB_COST = 0.1
# The largest share of the permits of one kind that an owner may hold.
OWNER_PART = 4
_SCHEME = b"bearer "
_NO_HASH = bytes(32)
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. `owner` owns its jobs; `max_open_jobs` None: a share of the model's queue.
    `extension_settings`: from its key. `has_token`: it sent a token instead of a key.
    """

    owner: str = ""
    roles: frozenset[Role] = frozenset()
    key_id: str = ""
    max_open_jobs: int | None = None
    extension_settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    has_token: bool = False

    @property
    def only_owner(self) -> str | None:
        """Whose jobs the caller sees; None: those of all."""
        return None if Role.MANAGE in self.roles else self.owner

    def sees(self, owner: str) -> bool:
        return self.only_owner in (None, owner)

    @property
    def is_alone(self) -> bool:
        """Whether the gateway has no keys, so that all callers are one owner."""
        return not self.key_id and bool(self.roles)

    def quota(self, max_queue_depth: int) -> int:
        """How many open jobs of one model the owner may have; 0: no limit but the queue's own. The store counts (D16)."""
        return (self.max_open_jobs or max(1, max_queue_depth // 4)) if self.key_id else 0


# D56: docs/design/gateway.md
class Shares:
    """This process's `most` permits of one kind, and how many of them each owner holds.

    Each owner may hold a quarter of them, and so may all callers without a key together. Without keys all callers are one
    owner, who may hold all. `setting` names the setting of `most`, if there is one.
    """

    def __init__(self, what: str, most: int, *, setting: str = "") -> None:
        self._what = what
        self._most = most
        self._hint = f"End some first; {setting} sets how many all owners have together." if setting else "End some first."
        self._held: Counter[str] = Counter()
        self.taken = 0

    def take(self, caller: Caller) -> None:
        """Raises `RateLimited` if the owner holds its whole share, `GatewayBusy` if no permit is left."""
        self.check(caller)
        self._add(caller, 1)

    def give_back(self, caller: Caller) -> None:
        self._add(caller, -1)

    def check(self, caller: Caller) -> None:
        if self.taken >= self._most:
            raise GatewayBusy(f"this gateway process has {self._most} {self._what} open", retry_after_s=2.0, hint=self._hint)
        share = self.share_of(caller)
        if self._held[caller.owner] >= share:
            raise RateLimited(
                f"this owner has {share} {self._what} open in this gateway process, its share of {self._most}",
                retry_after_s=1.0,
                hint=self._hint,
            )

    def is_free(self, caller: Caller) -> bool:
        return self.taken < self._most and self._held[caller.owner] < self.share_of(caller)

    def share_of(self, caller: Caller) -> int:
        return self._most if caller.is_alone else max(1, self._most // OWNER_PART)

    @contextmanager
    def held(self, caller: Caller, *, instead_of: Shares) -> Iterator[None]:
        """Holds a permit; meanwhile the caller's permit of `instead_of` is free for another request."""
        self.take(caller)
        instead_of._add(caller, -1)
        try:
            yield
        finally:
            instead_of._add(caller, 1)
            self.give_back(caller)

    def _add(self, caller: Caller, permits: int) -> None:
        self.taken += permits
        self._held[caller.owner] += permits
        if not self._held[caller.owner]:
            del self._held[caller.owner]


def cost_of(method: str, path: str) -> float:
    """A request's cost in its key's rate. Events of many jobs are many reads, so they cost as much as any request."""
    is_look_at_one = method == "GET" and path.startswith("/v1/jobs/") and path != "/v1/jobs/events"
    return POLL_COST if is_look_at_one else 1.0


class TokenRefused(Unauthorized):
    """The refusal of a gateway that also takes tokens; the tokens' protocol may give it another status."""


class TokenSource(Protocol):
    """Tokens that are renewed while the gateway runs. `caller` is None for an unknown or expired token."""

    def caller(self, token: bytes) -> Caller | None: ...

    def is_api(self, caller: Caller) -> bool:
        """Whether this caller may renew the tokens of others."""
        ...

    def renew(self, name: str) -> None:
        """Raises `OSError` or `ValueError`."""
        ...


# Without keys, every caller on this machine is an operator of the gateway.
EVERYBODY = Caller(roles=frozenset(Role))
NOBODY = Caller()


@dataclass(frozen=True, slots=True)
class _KnownKey:
    """`key` None: a caller without a key of ours. `is_stored`: the key is in the store, where it can be revoked."""

    caller: Caller
    bucket: SharedBucket | None
    expires_at: float = math.inf
    secret_hash: bytes = _NO_HASH
    key: Key | None = None
    is_stored: bool = False


class KeyAuth:
    """Finds the caller of a request by its Authorization header.

    Without keys all requests come from one caller, who may do everything at `rate_per_s` (0: any rate). Valid headers are
    remembered, so that a known key costs one look-up. `tokens` are valid beside the keys, and so are the store's keys,
    which `KeyBeat` keeps up to date. `on_limited` is called when a rate refuses a request. `clock` gives monotonic seconds,
    `wall` Unix seconds.
    """

    def __init__(
        self,
        keys: Sequence[Key] = (),
        *,
        rate_per_s: float = 0.0,
        burst: int = 200,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self.tokens: TokenSource | None = None
        self._declared = {key.id.encode("ascii"): _known_key(key) for key in keys}
        self._keys = self._declared
        self._open = None if keys else _KnownKey(EVERYBODY, SharedBucket(rate_per_s, burst) if rate_per_s else None)
        self._trusted_until = math.inf
        self.on_limited: Callable[[], None] = _nothing
        self._remembered: dict[bytes, _KnownKey] = {}
        self._guesses = AddressBuckets(rate_per_s=GUESSES_PER_S, burst=GUESSES_BURST, most=MAX_ADDRESSES)
        self._clock = clock
        self._wall = wall

    def now(self) -> float:
        """Unix seconds, by the store's clock once it has told its time."""
        return self._wall()

    def take_time(self, now: float) -> None:
        """Let keys end by the store's clock, which says `now`, because those of gateways may differ by hours."""
        began = self._clock()
        self._wall = lambda: now + self._clock() - began

    def take_tokens(self, tokens: TokenSource) -> None:
        """Also accept tokens. A gateway with tokens refuses callers without a key or a token."""
        self.tokens, self._open = tokens, None

    @property
    def keyed(self) -> bool:
        return self._open is None

    def declares(self, key_id: str) -> bool:
        """Whether this gateway's settings have the key."""
        return key_id.encode() in self._declared

    def buckets(self) -> dict[str, SharedBucket]:
        """The rates that are counted over all gateways, by key; a gateway without keys has one, with an empty name."""
        known = {"": self._open} if self._open else {name.decode(): one for name, one in self._keys.items()}
        return {name: one.bucket for name, one in known.items() if one.bucket is not None}

    def trust_for(self, seconds: float) -> None:
        """Trust the known keys of the store for this time. Afterwards their callers are asked to try again."""
        self._trusted_until = self._clock() + seconds

    def follow(self, stored: Mapping[str, Key]) -> set[str]:
        """Replace the keys of the store; returns the keys that were removed or changed.

        A key of the settings takes precedence over one of the store.
        """
        before = {name: one for name, one in self._keys.items() if one.is_stored}
        after = {name.encode("ascii"): key for name, key in stored.items() if not self.declares(name)}
        ended = {name for name, one in before.items() if one.key != after.get(name)}
        kept = {name: one for name, one in before.items() if name not in ended}
        made = {name: _known_key(key, is_stored=True) for name, key in after.items() if name not in kept}
        self._keys = {**kept, **made, **self._declared}
        self._remembered.clear()
        return {name.decode() for name in ended}

    def admit(self, authorization: bytes | None, address: str, cost: float = 1.0) -> Caller:
        """The caller; takes `cost` from its rate. Raises `Unauthorized`, the same for every invalid key, or `RateLimited`."""
        key = self._find(authorization)
        if key is None or key.expires_at <= self.now():
            raise self._refusal_to(address, authorization)
        return self._count_request(key, cost)

    def _count_request(self, key: _KnownKey, cost: float = 1.0) -> Caller:
        if key.is_stored and self._clock() > self._trusted_until:
            raise _blind()
        if key.bucket is not None:
            wait_s = key.bucket.take(self._clock(), cost)
            if wait_s:
                self.on_limited()
                raise RateLimited(
                    f"more than {key.bucket.rate_per_s:g} requests a second",
                    retry_after_s=wait_s,
                    hint="Slow down; GET /v1/jobs?ids= looks at many jobs at once, and ?wait= waits for a change.",
                )
        return key.caller

    def identify(self, authorization: bytes | None) -> Caller:
        """For public routes: the caller if the request has a valid key, else `NOBODY`. Does not count against the rate."""
        key = self._find(authorization)
        if key is None or key.expires_at <= self.now() or (key.is_stored and self._clock() > self._trusted_until):
            return NOBODY
        return key.caller

    def secret_mark(self, key_id: str) -> str:
        """Identifies the key's current secret without revealing its hash: a new secret under the same id has another mark."""
        return hashlib.sha256(b"session of " + self._keys.get(key_id.encode(), _UNKNOWN).secret_hash).hexdigest()[:16]

    def caller_of_key(self, key_id: str, mark: str) -> Caller | None:
        """The caller of a key that was checked before; None if its secret has changed. Counts against the rate, as `admit`."""
        key = self._keys.get(key_id.encode(), _UNKNOWN)
        known = hmac.compare_digest(self.secret_mark(key_id).encode(), mark.encode())
        if key is _UNKNOWN or not known or key.expires_at <= self.now():
            return None
        return self._count_request(key)

    def _find(self, authorization: bytes | None) -> _KnownKey | None:
        key = self._open or self._remembered.get(authorization or b"") or self._check(authorization)
        return key if key is not None or self.tokens is None else self._token(self.tokens, authorization or b"")

    def _token(self, tokens: TokenSource, header: bytes) -> _KnownKey | None:
        caller = tokens.caller(header[len(_SCHEME) :].strip()) if header[: len(_SCHEME)].lower() == _SCHEME else None
        return None if caller is None else _KnownKey(caller, None)

    def _check(self, authorization: bytes | None) -> _KnownKey | None:
        header = authorization or b""
        key_id, _, secret = header[len(_SCHEME) :].strip().partition(b".")
        key = self._keys.get(key_id, _UNKNOWN)
        # Unknown ids take the same work as known ones, and the comparison runs in constant time, so the time of a
        # refusal reveals nothing.
        right = hmac.compare_digest(hashlib.sha256(secret).digest(), key.secret_hash)
        if not right or key is _UNKNOWN or header[: len(_SCHEME)].lower() != _SCHEME:
            return None
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[header] = key
        return key

    def _refusal_to(self, address: str, authorization: bytes | None) -> Exception:
        wait_s = self._guesses.take(address, self._clock())
        if wait_s:
            return RateLimited("too many requests without a valid API key from this address", retry_after_s=wait_s)
        if authorization and self._clock() > self._trusted_until:
            # It may be a key of the store. A client that gets a 401 would not try again.
            return _blind()
        log.warning("key_refused", address=address)
        kind = Unauthorized if self.tokens is None else TokenRefused
        return kind(
            "this gateway requires an API key", hint="Send `Authorization: Bearer ID.SECRET`; clients read PENSTOCK_API_KEY."
        )


_UNKNOWN = _KnownKey(NOBODY, None)


def _known_key(key: Key, *, is_stored: bool = False) -> _KnownKey:
    caller = Caller(key.owner, key.roles, key.id, key.max_open_jobs, key.extension_settings)
    return _KnownKey(
        caller,
        SharedBucket(key.rate_per_s, key.burst),
        math.inf if key.expires_at is None else key.expires_at,
        bytes.fromhex(key.sha256),
        key,
        is_stored,
    )


def _blind() -> StoreUnavailable:
    return StoreUnavailable("the keys of the store could not be read for too long")


def _nothing() -> None:
    """The default of `on_limited`."""
