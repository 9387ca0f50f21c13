"""Webhooks: who receives the events of a job or a run, which events there are, and how they are signed. Pure."""

# D93: docs/design/webhooks.md
from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.outbound.urls import parse_url

# The letter of each event, by which the store knows the webhooks that want it.
JOB_EVENTS = {
    "job.succeeded": "s",
    "job.failed": "f",
    "job.cancelled": "c",
    "job.expired": "x",
    "job.progress": "p",
}
RUN_EVENTS = {"run.completed": "s", "run.failed": "f", "run.cancelled": "c", "run.expired": "x"}
BATCH_EVENTS = {"batch.completed": "s", "batch.failed": "f", "batch.cancelled": "c", "batch.expired": "x"}
# The letters of all ends; progress has to be asked for.
ENDS = "sfcx"
# Beside the letters of events: the body is a prediction of Replicate's protocol, or of Cog's.
AS_PREDICTION, AS_COG = "R", "C"
SECRET_PREFIX = "whsec_"
LEAST_KEY_BYTES, MOST_KEY_BYTES = 24, 64
_NEW_KEY_BYTES = 32
# The name of the word that the submit of a job or run has for the functions of webhooks.
WORD = "webhooks"
_PURPOSE = b"penstock webhook of "


@dataclass(frozen=True, slots=True)
class Webhook:
    """`letters`: the wanted events. `max_undelivered`: how many events of one owner and model may wait to be delivered."""

    url: str
    letters: str = ENDS
    max_undelivered: int = 10_000

    def endpoint(self, owner: str) -> str:
        """The URLs of an owner that share scheme, host and port are one endpoint: if it is slow, all of them wait."""
        scheme, host, port = parse_url(self.url).origin
        return hashlib.blake2b(f"{owner}\0{scheme}://{host}:{port}".encode(), digest_size=8).hexdigest()

    def word_of(self, owner: str) -> dict[str, str]:
        """The word of the webhook for a new job or run."""
        return {WORD: self.text(owner)}

    def text(self, owner: str) -> str:
        """The word of a job or run that has it, as `outbox.lua` reads it."""
        return f"{self.letters} {self.endpoint(owner)} {self.max_undelivered} {self.url}"


def letters_of(events: Iterable[str], known: Mapping[str, str]) -> str:
    """The letters of these events, each once. Raises KeyError for an event that is not known."""
    return "".join(dict.fromkeys(known[event] for event in events))


def event_id(job_or_run: str, number: int) -> str:
    """The id of event `number` of a job or run, the same at each attempt. It has no dot, which ends an id in what is signed."""
    return f"msg_{job_or_run}_{number}"


def key_bytes(secret: str) -> bytes:
    """The key behind `whsec_` and base64; raises ValueError for anything else."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not LEAST_KEY_BYTES <= len(key) <= MOST_KEY_BYTES:
        # No message repeats the text, since it may be a secret in another form.
        raise ValueError(f"a signing key is {SECRET_PREFIX} and {LEAST_KEY_BYTES} to {MOST_KEY_BYTES} random bytes in base64")
    return key


def new_signing_key() -> str:
    return secret_text(secrets.token_bytes(_NEW_KEY_BYTES))


def secret_text(key: bytes) -> str:
    """In the standard alphabet of base64: Replicate's verifier splits at the underscore, which the URL-safe one has too."""
    return SECRET_PREFIX + base64.b64encode(key).decode("ascii")


def owner_secret(signing_key: str, owner: str) -> str:
    """The secret with which the receivers of one owner verify. It cannot forge an event of another owner."""
    return secret_text(hmac.digest(key_bytes(signing_key), _PURPOSE + owner.encode(), "sha256"))


def signature(owner_secrets: Sequence[str], *, event_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature` of Standard Webhooks: one signature for each secret that is valid at the moment.

    `timestamp` is the moment of this attempt in Unix seconds.
    """
    signed = f"{event_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key_bytes(secret), signed, "sha256") for secret in owner_secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode('ascii')}" for digest in digests)
