"""What the manifest of an earlier drive says of a run that this one finds published."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.run import RunCounts, RunSpec, RunState
from penstock.runs.execution import _as_published
from penstock.runs.lease import RunLease
from penstock.runs.manifest import FileReport, Manifest


class Left:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def left_s(self) -> float:
        return self._seconds


@pytest.mark.parametrize(
    ("counts", "left_s", "state"),
    [
        (RunCounts(total=5, done=4, failed=1), -1.0, RunState.COMPLETED),
        (RunCounts(done=4), 9.0, RunState.COMPLETED),
        (RunCounts(total=5, done=4), 9.0, RunState.CANCELLED),
        (RunCounts(total=5, done=4), -1.0, RunState.EXPIRED),
    ],
)
def test_a_run_that_was_published_before_it_was_recorded_ends_as_it_was_published(
    counts: RunCounts, left_s: float, state: RunState
) -> None:
    """A driver that died in between of a cancelled run would have left it completed, with rows that did not run."""
    output, spec = FileReport(path="o", rows=5, bytes=9, sha256="0"), RunSpec(model="m", input="i", output="o")
    manifest = Manifest(
        run_id="r",
        model="m",
        version="1",
        settings=spec,
        input={},
        counts=counts,
        output=output,
        errors=None,
        started_at=0.0,
        finished_at=1.0,
        penstock_version="0",
    )
    lease: Any = Left(left_s)
    end = _as_published(manifest, cast("RunLease", lease))
    assert (end.state, end.counts) == (state, counts)
    assert end.details == {"output": {"path": "o", "rows": 5, "bytes": 9, "sha256": "0"}, "errors": None}
