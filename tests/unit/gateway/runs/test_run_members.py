"""Members of the body of POST /v1/runs that extensions read."""

from __future__ import annotations

import pytest
from msgspec import Struct

from penstock.errors import InvalidInput
from penstock.extensions.webhooks.gateway.requested import run_members
from penstock.gateway.runs.request import RunRequest, fingerprint, read_body, request_with
from penstock.settings.tables import Settings

BODY = {"model": "m", "input": "file-a", "webhook": "https://a.example/", "webhook_events": ["run.failed"]}


class OldRequest(RunRequest, forbid_unknown_fields=True, kw_only=True):
    """The body as gateways had it before extensions brought their members."""

    webhook: str = ""
    webhook_events: tuple[str, ...] = ()


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
    assert fingerprint(read(body)) == fingerprint(read_body(body, OldRequest))
