from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import Conflict, InvalidInput
from penstock.run import FailureLimit, Run, RunCounts, RunSpec, RunState, retry_spec


@pytest.mark.parametrize("value", ["many", "-1", -1, "101%", "1.5", "", "%", "5 %5", "³"])
def test_what_is_no_limit_is_refused_with_what_is(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        FailureLimit.parse(value)
    assert '"100%"' in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("value", "done", "failed", "passed"),
    [
        (5, 0, 5, False),
        ("5", 0, 6, True),
        ("0%", 9, 1, True),
        ("50%", 5, 5, False),
        ("50 %", 4, 6, True),
        ("100%", 0, 1_000, False),
        (None, 0, 100, False),
        (None, 89, 12, True),
        (None, 900, 100, False),
        (None, 899, 101, True),
    ],
)
def test_a_limit_is_a_number_of_rows_or_a_share_of_all(value: Any, done: int, failed: int, passed: bool) -> None:
    counts = RunCounts(done=done, failed=failed)
    assert FailureLimit.parse(value).is_passed(counts, ended=True) is passed


def test_a_share_is_judged_early_only_when_the_rest_cannot_make_it_good_or_many_have_failed() -> None:
    limit = FailureLimit.parse(None)
    assert not limit.is_passed(RunCounts(done=0, failed=100))
    assert limit.is_passed(RunCounts(done=0, failed=101))
    assert not limit.is_passed(RunCounts(total=10_000, done=0, failed=1_000))
    assert limit.is_passed(RunCounts(total=10_000, done=0, failed=1_001))


def test_only_runs_over_files_are_retried() -> None:
    """`penstock run resume BATCH --failed` ran the whole batch of another protocol again, and replaced its output."""
    spec = RunSpec(model="m", input="in.jsonl", output="out.jsonl", kind="openai")
    batch = Run(id="r", spec=spec, state=RunState.COMPLETED, created_at=0.0, counts=RunCounts(total=2, done=1, failed=1))
    with pytest.raises(Conflict, match="no run over files"):
        retry_spec(batch)
    over_files = replace(batch, spec=replace(spec, kind="files"), version="2")
    assert (retry_spec(over_files).version, retry_spec(over_files).overwrite) == ("2", True)
