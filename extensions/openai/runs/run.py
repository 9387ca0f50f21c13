"""An OpenAI batch as a run: its source and sink for the driver, and the results of lines that it did not reach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.extensions.openai.runs.batch import OpenAISink, OpenAISource, unfinished_results
from penstock.run import RunCounts, RunSpec, RunState
from penstock.runs.journal import NAME
from penstock.runs.rows import RowError, Sink

OPENAI = "openai"
NOT_REACHED = {
    RunState.CANCELLED: RowError("cancelled", "the batch was cancelled before this line"),
    RunState.EXPIRED: RowError("expired", "the batch expired before this line"),
}


def open_batch(spec: RunSpec) -> OpenAISource:
    """The source of a batch. Raises `InvalidBatch` with every faulty line."""
    return OpenAISource(spec).open()


def open_answers(spec: RunSpec) -> tuple[Sink, Path, Callable[[], None]]:
    """The sink, the folder of the journal, and the function that removes the journal."""
    folder = Path(spec.output).parent
    return OpenAISink(spec), folder, lambda: (folder / NAME).unlink(missing_ok=True)


def write_unfinished(
    source: OpenAISource, sink: Sink, after: dict[str, Any] | None, counts: RunCounts, state: RunState
) -> RunCounts:
    """Write for every line behind `after` why it has no answer; returns the counts with these lines."""
    failed = counts.failed
    for results in unfinished_results(source, after, NOT_REACHED[state]):
        sink.append(results)
        failed += len(results.outputs)
    return RunCounts(total=counts.total, done=counts.done, failed=failed)
