"""docs/production/security.md: every attack has a line, every line names a test or a reason, the roles match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.access import Role
from tests.security.keyed import RULES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "production" / "security.md").read_text("utf-8")
LINES = dict(re.findall(r"^\| (A\d+|F\d+) \| (.*) \|$", TEXT, re.MULTILINE))


def test_all_forty_attacks_are_listed() -> None:
    assert {f"A{number}" for number in range(1, 41)} <= LINES.keys()


@pytest.mark.parametrize("attack", LINES)
def test_a_line_names_a_test_that_exists_or_says_why_there_is_none(attack: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", LINES[attack])
    # tests/unit/test_cures.py holds that the reason names a feature that penstock does not have.
    assert named or "not applicable yet: no " in LINES[attack]
    for file, test in named:
        assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), f"{file} has no {test}"


@pytest.mark.parametrize(
    ("shown", "method", "route"),
    [
        ("`POST /predictions/...`", "POST", "/predictions/{model}"),
        ("`GET /v1/jobs`", "GET", "/v1/jobs/{job_id}/result"),
        ("`DELETE /v1/jobs/{id}`", "POST", "/v1/jobs/{job_id}/cancel"),
        ("`GET /v1/models`", "GET", "/openapi.json"),
        ("`GET /v1/queues`", "GET", "/v1/queues/{model}"),
        ("`GET /v1/workers`", "GET", "/metrics"),
        ("`GET /v1/jobs/{id}/deliveries`", "GET", "/v1/webhooks/undelivered"),
        ("`GET /v1/webhooks/secret`", "GET", "/replicate/v1/webhooks/default/secret"),
        ("`POST /v1/webhooks/replay`", "POST", "/v1/webhooks/dismiss"),
        ("`/livez`", "GET", "/problems/{code}"),
    ],
)
def test_the_table_of_roles_says_what_the_code_does(shown: str, method: str, route: str) -> None:
    [line] = [line for line in TEXT.splitlines() if line.startswith(f"| {shown}")]
    *yes, nobody = [cell.strip() != "–" for cell in line.split("|")[2:6]]
    roles = RULES.roles_of(method, route)
    assert nobody == (not roles)
    assert [role for role, allowed in zip(Role, yes, strict=True) if allowed] == [
        role for role in Role if not roles or role in roles
    ]
