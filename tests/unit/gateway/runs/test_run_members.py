"""Members of the body of POST /v1/runs that extensions read."""

from __future__ import annotations

import pytest
from msgspec import Struct

from penstock.errors import InvalidInput
from penstock.extensions.openai.gateway.batch_request import FIRST_MEMBERS, BatchRequest
from penstock.extensions.webhooks.gateway.requested import run_members
from penstock.gateway.runs.request import RunRequest, fingerprint, read_body, request_with
from penstock.settings.tables import Settings

FIRST = "webhook webhook_events"
BODY = {"model": "m", "input": "file-a", "webhook": "https://a.example/", "webhook_events": ["run.failed"]}


class OldRequest(RunRequest, forbid_unknown_fields=True, kw_only=True):
    """The body as gateways had it before extensions brought their members."""

    webhook: str = ""
    webhook_events: tuple[str, ...] = ()


class LaterRequest(OldRequest, forbid_unknown_fields=True, kw_only=True):
    """The body of a tree that has one member more."""

    pace_rows: int = 0


def read(body: object) -> Struct:
    return read_body(body, request_with([run_members(Settings.load(None, {}))]))


def test_members_of_extensions_are_read_and_checked_as_ours() -> None:
    assert read(BODY) != read({**BODY, "webhook_events": []})
    with pytest.raises(InvalidInput) as refused:
        read({**BODY, "webhook": 1})
    assert refused.value.errors == [{"pointer": "/webhook", "detail": "Expected `str`, got `int`"}]


def test_a_member_that_nobody_reads_is_refused() -> None:
    with pytest.raises(InvalidInput, match="unknown field `webhok`"):
        read({**BODY, "webhok": "https://a.example/"})
    with pytest.raises(InvalidInput, match="unknown field `webhook`"):
        read_body(BODY, request_with([]))


@pytest.mark.parametrize("body", [BODY, {"model": "m", "input": "file-a"}])
def test_a_request_that_is_repeated_after_an_upgrade_has_the_same_fingerprint(body: dict[str, object]) -> None:
    """Regression: with the next member, a run's request that was repeated under its key after an upgrade would be refused."""
    before = fingerprint(read_body(body, OldRequest), FIRST)
    assert fingerprint(read(body), FIRST) == before
    assert fingerprint(read_body(body, LaterRequest), FIRST) == before
    assert fingerprint(read_body({**body, "pace_rows": 1}, LaterRequest), FIRST) != before


def test_a_fingerprint_is_that_of_the_trees_before() -> None:
    batch = {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}
    assert [
        fingerprint(read({"model": "square", "input": "file-1", "tags": ["a"]}), FIRST),
        fingerprint(read_body(batch, BatchRequest), FIRST_MEMBERS),
        fingerprint(("retry", "r1")),
    ] == [
        "fe09d598e84a2093e5df84906643a252c93c60e08c7741245b1ef1531d9c37d2",
        "2a758856ab6d355399a197cfd24d24137a9f920e56e7d1bb84cd630c034b74e9",
        "8393291eb6646f5863b358a6d333af38d3e03d675fb701eeb63bf93dc26b389d",
    ]
