"""What a store's refusals mean to callers: it is away, it refuses to write, or the call should be repeated."""

from __future__ import annotations

import re
from collections import Counter

import redis

from penstock.errors import StoreUnavailable, is_disk_full

# The refusals of a former primary that is a replica now, and of a replica whose primary is away. The call was not carried out.
DEMOTED = (redis.ReadOnlyError, redis.exceptions.MasterDownError)
AWAY = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError, OSError)
# With these refusals a server has not carried out the call: another server will take it, or this one in a moment.
NOT_NOW = (
    *DEMOTED,
    redis.BusyLoadingError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.AskError,
)
# redis-py has a class for this refusal and cuts its code off the message; the other refusals keep their code.
_REFUSALS = (redis.OutOfMemoryError,)
_REFUSED = ("MISCONF", "NOREPLICAS")
_FORBIDDEN_HINT = "give this Redis user the rights that `penstock store users` prints"
_NEW_ENOUGH = "use a newer Redis, or Valkey; without PENSTOCK_REDIS_URL, `penstock up` starts a store of its own"
_UNKNOWN = re.compile("unknown command ['`](FUNCTION|FCALL)")
_CODES = {
    redis.ReadOnlyError: "READONLY",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.BusyLoadingError: "LOADING",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
}
# How often a server asked this process to repeat a call, by the code of the refusal. A metric.
asked_again: Counter[str] = Counter()


class LoginRefused(StoreUnavailable):
    """Redis answers, and does not take the user name or the password. Trying again does not help."""


class NoFunctions(StoreUnavailable):
    """The server answers, and has no Redis Functions. Trying again does not help."""


class AskAgain(StoreUnavailable):
    """The store has not carried out the call; the same call may succeed in a moment, maybe at another server."""


def count_asked_again(error: Exception) -> None:
    asked_again[_CODES.get(type(error), "other")] += 1


def store_error(error: Exception) -> Exception:
    """`StoreUnavailable` if Redis is away, refuses writes, forbids the command or lacks functions; else the error itself."""
    if isinstance(error, redis.AuthenticationError):
        return LoginRefused(
            f"Redis refuses the user name or the password: {error}",
            hint="correct them in PENSTOCK_REDIS_URL or store.url, as redis://USER:PASSWORD@HOST:PORT",
        )
    if is_disk_full(error):
        return StoreUnavailable(f"the disk of the job store is full: {error}", hint="free some space on that disk")
    if isinstance(error, NOT_NOW):
        return _not_now(error)
    if isinstance(error, AWAY):
        return StoreUnavailable(f"Redis cannot be reached: {error}", hint="see `penstock doctor`")
    return _refusal(error) or error


def _refusal(error: Exception) -> StoreUnavailable | None:
    said = str(error) if isinstance(error, redis.ResponseError) else ""
    if isinstance(error, redis.exceptions.NoPermissionError):
        return StoreUnavailable(f"Redis does not allow this user what it needs: {error}", hint=_FORBIDDEN_HINT)
    if _UNKNOWN.match(said):
        return NoFunctions("this Redis has no functions: it is older than 7.0, or its commands are renamed", hint=_NEW_ENOUGH)
    if "WAITAOF" in said:
        return StoreUnavailable(f"the store cannot wait for its replica: {error}", hint="see `penstock doctor`")
    if isinstance(error, _REFUSALS) or (said and said.startswith(_REFUSED)):
        return StoreUnavailable(f"Redis refuses to write: {error}", hint="see `penstock doctor`")
    return None


def _not_now(error: Exception) -> StoreUnavailable:
    count_asked_again(error)
    code = _CODES.get(type(error), "")
    if isinstance(error, redis.ReadOnlyError):
        return AskAgain(f"Redis refuses to write: {code} {error}", hint="see `penstock doctor`: is this the primary?")
    if isinstance(error, redis.exceptions.MovedError):
        hint = "if store.url is of one server, and that is a node of a cluster: write redis+cluster://HOST:PORT"
        return AskAgain(f"another node of the cluster has this key: {code} {error}", hint=hint)
    return AskAgain(
        f"Redis cannot answer at the moment: {code} {error}", hint="it is repeated by itself; see `penstock doctor`"
    )


def not_loaded(error: Exception) -> StoreUnavailable:
    """The library is missing and this user may not load it; the hint says what an administrator has to do."""
    return StoreUnavailable(
        f"Redis lacks the functions of this version of penstock, and this user may not load them: {error}",
        hint="load them as an administrator: penstock store load --redis-url URL (`penstock up` does it for its own store)",
    )


def is_lacking(error: object) -> bool:
    """Whether the server lacks the library of functions."""
    return isinstance(error, redis.ResponseError) and "Function not found" in str(error)
