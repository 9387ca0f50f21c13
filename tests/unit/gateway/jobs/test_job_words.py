"""What requests say to extensions: who is asked, which words the job gets, and whose refusal an answer of the store is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from penstock.broker.records import SubmitStatus, Submitted
from penstock.errors import InvalidInput, QuotaSpent
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.extending import WordReader, WordsPart
from penstock.gateway.jobs.submitting.draft import Draft
from penstock.job import Job, JobState, Priority, new_job_id


def draft(*, is_awaited: bool) -> Draft:
    return Draft(model="m", caller=Caller("me"), kind="jobs", is_awaited=is_awaited)


def word(said: Mapping[str, str], draft: Draft, model: str) -> str:
    return f"{said.get('colour', 'plain')} {draft.caller.owner} {model}"


def silent(said: Mapping[str, str], draft: Draft, model: str) -> str:
    return said.get("sound", "")


async def kept(job: Job) -> str:
    return f"as {job.version}"


READER = WordReader(
    {
        "paint": WordsPart(word, is_asked=True, kept=kept),
        "music": WordsPart(silent, refusals={SubmitStatus.UNDELIVERED: QuotaSpent}),
    }
)


def test_an_extension_reads_what_the_request_says_to_it() -> None:
    assert READER.words_of(draft(is_awaited=True), {"paint": {"colour": "red"}}, "m") == {"paint": "red me m"}
    assert READER.words_of(draft(is_awaited=True), {"music": {"sound": "c"}}, "m") == {"music": "c"}


def test_of_a_request_that_says_nothing_only_those_are_asked_that_have_defaults_and_none_while_it_waits() -> None:
    assert READER.asked == ("paint",)
    assert READER.words_of(draft(is_awaited=False), {}, "m") == {"paint": "plain me m"}
    assert READER.words_of(draft(is_awaited=True), {}, "m") == {}


def test_an_empty_word_is_none() -> None:
    assert READER.words_of(draft(is_awaited=True), {"music": {}}, "m") == {}


def test_what_is_said_to_an_extension_that_is_not_installed_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no extension 'dance', so nothing was stored"):
        READER.words_of(draft(is_awaited=True), {"dance": {}}, "m")


def test_a_replay_keeps_the_words_of_its_job() -> None:
    job = Job(new_job_id("m"), JobState.FAILED, "2", Priority.BULK, 0.0, 0.0)
    assert asyncio.run(READER.kept(job)) == {"paint": "as 2"}


def test_a_refusal_of_an_extensions_functions_is_worded_by_the_extension() -> None:
    job = new_job_id("m")
    assert isinstance(READER.refusal(Submitted(SubmitStatus.UNDELIVERED, job, 0), "m"), QuotaSpent)
    assert READER.refusal(Submitted(SubmitStatus.FULL, job, 0), "m") is None
