"""How events are signed: vectors, and the verifiers that receivers have."""

from __future__ import annotations

import base64
import time
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from penstock.extensions.webhooks.webhook import (
    JOB_EVENTS,
    Webhook,
    event_id,
    key_bytes,
    letters_of,
    new_signing_key,
    owner_secret,
    secret_text,
    signature,
)

# The example of the Standard Webhooks specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def headers(
    body: bytes = BODY, *, secrets: tuple[str, ...] = (SECRET,), at: float = 0.0, name: str = "msg_1"
) -> dict[str, str]:
    timestamp = int(time.time() + at)
    signed = signature(secrets, event_id=name, timestamp=timestamp, body=body)
    return {"webhook-id": name, "webhook-timestamp": str(timestamp), "webhook-signature": signed}


def test_the_signature_is_that_of_the_specification() -> None:
    found = signature([SECRET], event_id="msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp=1614265330, body=BODY)
    assert found == SIGNED
    then = datetime(2021, 2, 25, 15, 2, 10, tzinfo=UTC)
    assert Verifier(SECRET).sign("msg_p5jXN8AQM9LWM0D4loKWxJek", then, BODY.decode()) == SIGNED


def test_both_secrets_verify_while_they_are_rotated() -> None:
    new, old, other = new_signing_key(), new_signing_key(), new_signing_key()
    sent = headers(secrets=(new, old))
    assert len(sent["webhook-signature"].split()) == 2
    for secret in (new, old):
        assert Verifier(secret).verify(BODY, sent) == {"test": 2432232314}
    with pytest.raises(WebhookVerificationError):
        Verifier(other).verify(BODY, sent)


@pytest.mark.parametrize("change", ["body", "id", "timestamp", "early", "late"])
def test_what_was_changed_or_is_old_is_refused(change: str) -> None:
    """A31: a body, an id or a moment that was not signed, and an event that is sent once more after its time."""
    at = {"early": -301.0 - 1, "late": 301.0 + 1}.get(change, 0.0)
    sent, body = headers(at=at), BODY
    if change == "body":
        body = BODY + b" "
    if change == "id":
        sent["webhook-id"] = "msg_2"
    if change == "timestamp":
        sent["webhook-timestamp"] = str(int(sent["webhook-timestamp"]) + 1)
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(body, sent)


def test_an_owner_cannot_sign_for_another_one() -> None:
    key = new_signing_key()
    mine, theirs = owner_secret(key, "me"), owner_secret(key, "them")
    assert len({key, mine, theirs, owner_secret(new_signing_key(), "me")}) == 4
    with pytest.raises(WebhookVerificationError):
        Verifier(theirs).verify(BODY, headers(secrets=(mine,)))


def test_a_secret_has_one_underscore_whatever_its_bytes_are() -> None:
    """Replicate's verifier splits it there, and the URL-safe alphabet of base64 has underscores too."""
    assert secret_text(b"\xff" * 24).count("_") == 1
    assert "/" in secret_text(b"\xff" * 24)
    assert all(owner_secret(SECRET, str(number)).count("_") == 1 for number in range(200))


@pytest.mark.parametrize(
    "text",
    ["", "whsec_", "whsec_short", SECRET.removeprefix("whsec_"), f"whsec_{base64.b64encode(bytes(65)).decode()}", "whsec_ü"],
)
def test_a_signing_key_of_another_form_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="24 to 64 random bytes") as refused:
        key_bytes(text)
    assert len(text) < 8 or text not in str(refused.value)


def test_a_new_signing_key_can_be_used() -> None:
    assert len(key_bytes(new_signing_key())) == 32
    assert new_signing_key() != new_signing_key()


def test_an_endpoint_is_an_owners_scheme_host_and_port() -> None:
    one = Webhook("https://hooks.example/a").endpoint("me")
    assert Webhook("https://HOOKS.example:443/b?c=1").endpoint("me") == one
    others = {
        Webhook("https://hooks.example/a").endpoint("you"),
        Webhook("http://hooks.example/a").endpoint("me"),
        Webhook("https://hooks.example:8443/a").endpoint("me"),
        Webhook("https://other.example/a").endpoint("me"),
    }
    assert len(others | {one}) == 5


def test_events_have_letters_and_ids_without_a_dot() -> None:
    assert letters_of(["job.failed", "job.progress", "job.failed"], JOB_EVENTS) == "fp"
    assert "." not in event_id("01k9xw3c5t8ze2m4v6b7n0q1rs", 3)


def test_a_verifier_takes_a_timestamp_within_five_minutes() -> None:
    assert timedelta(seconds=299) < timedelta(minutes=5)
    for at in (-290.0, 290.0):
        assert Verifier(SECRET).verify(BODY, headers(at=at))
