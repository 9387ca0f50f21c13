"""Faults of today that the suite finds, by door and test. Each is a strict xfail: who mends one takes its line away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_TRACE, _TRACE_BACK = "test_the_trace_reaches_the_job", "test_the_trace_comes_back"
_COUNTED = "test_a_refusal_is_counted"
_REPEAT = "test_a_repeat_gets_the_version_of_its_first_job"
_LATE = ("test_the_open_jobs_of_an_owner_are_limited", "test_a_full_queue_is_refused")
_SECONDS = (
    *_LATE,
    "test_a_model_without_a_worker_is_refused_at_once",
    "test_a_store_that_cannot_be_reached_is_said_with_the_seconds",
)


def _of(doors: str, tests: Iterable[str], reason: str) -> dict[tuple[str, str], str]:
    return {(door, test): reason for door in doors.split() for test in tests}


KNOWN: Mapping[tuple[str, str], str] = {
    **_of(
        "jobs_batch replay embeddings replicate replicate_model torchserve_grpc",
        [_TRACE, _TRACE_BACK],
        "the door drops `traceparent`",
    ),
    **_of("oip_grpc cog cog_put", [_TRACE_BACK], "the job has the trace, and the answer does not name it"),
    **_of("embeddings replicate replicate_model cog cog_put", [_COUNTED], "the door counts no refusal of what it reads"),
    **_of("oip_grpc", [_COUNTED], "a message is too large before the door knows whose refusal it is"),
    **_of(
        "oip",
        [_COUNTED, "test_too_large_a_body_is_refused"],
        "JSON beyond its limit is 400 and no refusal of size; all other doors answer 413",
    ),
    **_of("jobs_batch oip oip_grpc cog cog_put torchserve", [_REPEAT], "the input is checked by the split's version of now"),
    **_of(
        "torchserve_grpc",
        [_REPEAT, "test_a_repeat_with_the_same_key_is_the_same_job", "test_the_key_of_another_request_is_refused"],
        "`idempotency-key` among the metadata is not read",
    ),
    **_of("torchserve_grpc", _SECONDS, "a refusal worded for TorchServe loses its `retry-after`"),
}
