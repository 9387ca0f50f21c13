"""An OpenAI batch as a run: its source and sink as the driver takes them, and what becomes of lines it did not come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.run import RunCounts, RunSpec, RunState
from penstock.runs.journal import NAME
from penstock.runs.openai.batch import OpenAISink, OpenAISource, unfinished
from penstock.runs.rows import RowError, Sink

OPENAI = "openai"
_NOT_REACHED = {
    RunState.CANCELLED: RowError("cancelled", "the batch was cancelled before this line"),
    RunState.EXPIRED: RowError("expired", "the batch's time was over before this line"),
}


def open_batch(spec: RunSpec) -> OpenAISource:
    """Raises `InvalidBatch` with every faulty line."""
    return OpenAISource(spec).open()


def open_answers(spec: RunSpec) -> tuple[Sink, Path, Callable[[], None]]:
    """The sink, the folder of the journal, and what removes it."""
    folder = Path(spec.output).parent
    for name in (spec.output, spec.errors):
        _take_back(Path(name))
    return OpenAISink(spec), folder, lambda: (folder / NAME).unlink(missing_ok=True)


def _take_back(path: Path) -> None:
    """A file that was put in place by a driver that then died, before it could say that the run has ended."""
    part = path.with_name(path.name + ".part")
    if path.exists() and path.stat().st_size and not part.exists():
        path.replace(part)


def tell_unfinished(
    source: OpenAISource, sink: Sink, after: dict[str, Any] | None, counts: RunCounts, state: RunState
) -> RunCounts:
    """Says of every line behind `after` why it has no answer; the counts with them."""
    failed = counts.failed
    for results in unfinished(source, after, _NOT_REACHED[state]):
        sink.append(results)
        failed += len(results.outputs)
    return RunCounts(total=counts.total, done=counts.done, failed=failed)
