"""Who may call: roles, keys and owners; how a key's secret is made and checked; which headers carry credentials, and
which of a request model code may see. Pure.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.errors import TooLarge

KEY_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# 256 random bits cannot be guessed, so one plain hash protects them as well as a slow one would.
SECRET_BYTES = 32
# Words that people copy from documentation, or choose in a hurry.
_WEAK_SECRETS = ("", "secret", "password", "changeme", "change-me", "example", "test", "admin", "penstock", "your-secret-here")

# Stands for all request headers except those of the connection and those with credentials.
ANY_HEADER = "*"
# Model code never gets these, even if a setting names them.
CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
# Gateways and clouds pass a caller's identity in these headers. A model gets one only if its settings name it.
HANDED_ON_CREDENTIALS = frozenset(
    {
        "authentication",
        "x-authorization",
        "x-forwarded-authorization",
        "x-original-authorization",
        "x-api-key",
        "api-key",
        "apikey",
        "x-goog-api-key",
        "x-functions-key",
        "x-rapidapi-key",
        "ocp-apim-subscription-key",
        "x-auth-token",
        "x-access-token",
        "x-id-token",
        "x-session-token",
        "x-forwarded-access-token",
        "x-auth-request-access-token",
        "x-amz-security-token",
        "x-amzn-oidc-accesstoken",
        "x-amzn-oidc-data",
        "x-goog-iap-jwt-assertion",
        "x-ms-token-aad-access-token",
        "x-ms-token-aad-id-token",
        "cf-access-jwt-assertion",
        "cf-access-client-secret",
        "x-vault-token",
        "private-token",
        "x-gitlab-token",
        "x-csrf-token",
        "x-xsrf-token",
    }
)
# These describe the connection and not the request.
_OF_CONNECTION = frozenset(
    {"connection", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
_NOT_AMONG_ALL = CREDENTIAL_HEADERS | HANDED_ON_CREDENTIALS | _OF_CONNECTION
MOST_HEADER_BYTES = 16 * 1024


class Role(StrEnum):
    """`submit`: make jobs and cancel own jobs. `read`: see own jobs. `manage`: see and cancel all jobs, see workers."""

    SUBMIT = "submit"
    READ = "read"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True)
class Key:
    """One API key as declared. Only the hash of its secret is known here.

    `rate_per_s` and `burst` bound its requests, `max_open_jobs` the jobs of its owner that have not ended, per model (None: a
    quarter of the model's queue). `expires_at` is Unix seconds. `extension_settings`: those that
    extensions add, by their names.
    """

    id: str
    sha256: str
    roles: frozenset[Role]
    owner: str
    rate_per_s: float = 100.0
    burst: int = 200
    max_open_jobs: int | None = None
    expires_at: float | None = None
    extension_settings: Mapping[str, Any] = field(default_factory=dict, hash=False)


def new_secret() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


def is_weak(sha256: str) -> bool:
    """Whether the secret behind this hash is easy to guess: empty, a common word, or copied from an example."""
    return len(set(sha256)) == 1 or sha256.lower() in {digest_of(word.encode()) for word in _WEAK_SECRETS}


def wanted_headers(headers: Iterable[tuple[bytes, bytes]], names: Sequence[str]) -> dict[str, str]:
    """The headers with these lower-case names; values of one name are joined by a comma, as HTTP has it.

    If `ANY_HEADER` is among the names, these are all but those of the connection and those with credentials. Raises
    `TooLarge` if they are too long.
    """
    by_name: dict[str, str] = {}
    size, is_any = 0, ANY_HEADER in names
    for raw, value in headers if names else ():
        name = raw.decode("latin-1")
        if name in names or (is_any and name not in _NOT_AMONG_ALL):
            text = value.decode("latin-1")
            by_name[name] = f"{by_name[name]}, {text}" if name in by_name else text
            size += len(raw) + len(value)
    if size > MOST_HEADER_BYTES:
        raise TooLarge(f"the headers for the model have {size} bytes; {MOST_HEADER_BYTES} is the limit")
    return by_name
