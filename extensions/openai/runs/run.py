"""An OpenAI batch as a kind of run (D41): its source and sink, and what stands for the lines that it did not reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.extensions.openai.runs.batch import OpenAISink, OpenAISource
from penstock.run import Run, RunSpec, RunState
from penstock.runs.journal import NAME, Journal
from penstock.runs.kinds import ClaimedOutput, RunKind
from penstock.runs.rows import RowError

# D41: docs/design/gateway.md


def _check(spec: RunSpec) -> None:
    """A file whose first line cannot be read names no model. Raises `InvalidBatch` with every faulty line."""
    OpenAISource(spec).open()


def _open(spec: RunSpec, input_schema: dict[str, Any] | None) -> tuple[OpenAISource, int]:
    return OpenAISource(spec).open(), 1


def _claim(run: Run, first_line: int | None, state_dir: Path) -> ClaimedOutput:
    folder = Path(run.spec.output).parent
    return ClaimedOutput(OpenAISink(run.spec), Journal(folder / NAME), folder, lambda: (folder / NAME).unlink(missing_ok=True))


# OpenAI's protocol completes a batch even if every line failed, and counts the failures.
kind = RunKind(
    _open,
    _claim,
    check=_check,
    unreached={
        RunState.CANCELLED: RowError("cancelled", "the batch was cancelled before this line"),
        RunState.EXPIRED: RowError("expired", "the batch expired before this line"),
    },
)
