"""Which webhook a submit gets, and what keeps a gateway with wrong ones from starting."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from penstock.errors import ConfigError, InvalidInput
from penstock.extensions.webhooks.gateway.requested import check_defaults, webhook_of
from penstock.extensions.webhooks.gateway.words import WebhookWords
from penstock.extensions.webhooks.settings import WebhooksSettings
from penstock.extensions.webhooks.webhook import BATCH_EVENTS, RUN_EVENTS, new_signing_key
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.extending import JobsHost
from penstock.gateway.jobs.submitting.draft import Draft
from penstock.gateway.jobs.submitting.submit_options import parse_submit_options
from penstock.settings.tables import Settings

if TYPE_CHECKING:
    from penstock.broker.blobs.files import BlobStore
    from penstock.broker.store.aio import AsyncStore

URL, OF_KEY, OF_MODEL = (f"https://{name}.example/hooks" for name in ("named", "key", "model"))
ON = Settings.load(
    None,
    {},
    flags={
        "webhooks.signing_keys": (new_signing_key(),),
        "webhooks.max_undelivered": 7,
        "models.square.source": "square.py",
        "models.square.webhook": OF_MODEL,
    },
)
OFF = Settings.load(None, {})
PLAIN, HOOKED = Caller("me"), Caller("me", extension_settings={"webhook": OF_KEY})


@pytest.mark.parametrize(
    ("url", "caller", "model", "found"),
    [
        (URL, HOOKED, "square", URL),
        ("", HOOKED, "square", OF_KEY),
        ("", PLAIN, "square", OF_MODEL),
        ("", PLAIN, "other", None),
    ],
)
def test_what_is_named_comes_first_then_the_key_then_the_model(url: str, caller: Caller, model: str, found: str | None) -> None:
    hook = webhook_of(ON, url, caller=caller, model=model)
    assert (hook and hook.url) == found
    assert hook is None or (hook.letters, hook.max_undelivered) == ("sfcx", 7)


def test_events_are_those_of_the_thing_that_is_submitted() -> None:
    for event, known, letter in (("run.failed", RUN_EVENTS, "f"), ("batch.expired", BATCH_EVENTS, "x")):
        hook = webhook_of(ON, URL, [event], caller=PLAIN, model="m", known=known)
        assert hook is not None
        assert hook.letters == letter
    with pytest.raises(InvalidInput, match=r"there is no event 'run.failed'"):
        webhook_of(ON, URL, ["run.failed"], caller=PLAIN, model="m")


def test_where_webhooks_are_off_a_default_of_a_key_is_refused_too() -> None:
    for url, caller in ((URL, PLAIN), ("", HOOKED)):
        with pytest.raises(InvalidInput, match="webhooks are off"):
            webhook_of(OFF, url, caller=caller, model="m")
    assert webhook_of(OFF, "", caller=PLAIN, model="m") is None


def test_the_query_of_a_submit_has_them() -> None:
    options = parse_submit_options(b"webhook=https%3A%2F%2Fa.example%2F%3Fkey%3D1&webhook_events=job.failed,job.progress")
    assert options.said == {"webhooks": {"webhook": "https://a.example/?key=1", "webhook_events": "job.failed,job.progress"}}


def test_defaults_that_no_submit_could_use_are_faults_of_the_settings() -> None:
    on, off = WebhooksSettings(signing_keys=(new_signing_key(),)), WebhooksSettings()
    check_defaults({"models.a.webhook": URL}, on)
    check_defaults({}, off)
    with pytest.raises(ConfigError, match=r"models.a.webhook: the webhook cannot be used"):
        check_defaults({"models.a.webhook": "http://10.0.0.1/"}, on)
    with pytest.raises(ConfigError, match=r"webhooks are off: set webhooks.signing_keys"):
        check_defaults({"models.a.webhook": URL}, off)


@pytest.mark.parametrize(
    ("said", "caller", "is_awaited", "letters"),
    [
        ({"webhook": URL, "webhook_events": "job.failed"}, PLAIN, True, "f"),
        ({"webhook": URL, "letters": "psR"}, PLAIN, True, "psR"),
        ({}, HOOKED, False, "sfcx"),
        ({}, PLAIN, False, "sfcx"),
        ({}, HOOKED, True, ""),
    ],
)
def test_the_word_of_a_job_has_the_webhook_that_its_request_asks_for(
    said: dict[str, str], caller: Caller, is_awaited: bool, letters: str
) -> None:
    words = WebhookWords(JobsHost(ON, cast("AsyncStore", None), cast("BlobStore", None)))
    word = words.word(said, Draft(model="square", caller=caller, kind="jobs", is_awaited=is_awaited), "square")
    assert word.partition(" ")[0] == letters
