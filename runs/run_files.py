"""What one run reads and writes: its source, its sink, and the journal that says how far both are."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import InvalidInput
from penstock.run import Run, RunCounts, RunSpec
from penstock.runs.driver import Checkpoint
from penstock.runs.journal import NAME, Header, Journal, JournalEntry, refuse_changed
from penstock.runs.openai.run import OPENAI, open_answers, open_batch
from penstock.runs.retry import RETRY_OF, retry_source
from penstock.runs.rows import Sink, Source

FILES = "files"
# How a run goes, not what comes of it: these may differ when it is resumed.
_PACE: dict[str, Any] = {
    "window_rows": 10_000,
    "shard_rows": 0,
    "max_failed": None,
    "deadline_s": 0.0,
    "overwrite": False,
    "metadata": {},
}


@dataclass(slots=True)
class RunFiles:
    """Open while a run is driven. `place` is where it was left, or its beginning."""

    source: Source
    sink: Sink
    journal: Journal
    place: Checkpoint
    folder: Path
    discard: Callable[[], None]

    def commit(self, place: Checkpoint) -> None:
        """Make a place durable; the sink's own commit has been."""
        counts = place.counts
        self.journal.append(
            JournalEntry(
                rows_done=counts.done + counts.failed,
                failed=counts.failed,
                after=place.after or {},
                mark=place.mark or {},
                at=time.time(),
            )
        )

    def close(self) -> None:
        self.journal.close()
        self.source.close()
        self.sink.close()


def spec_digest(spec: RunSpec) -> str:
    """Equal for specs that give equal outputs."""
    settled = msgspec.structs.replace(spec, **_PACE)
    return hashlib.sha256(msgspec.json.encode(settled, order="deterministic")).hexdigest()


def open_source(spec: RunSpec, input_schema: dict[str, Any] | None) -> tuple[Source, int | None]:
    """The run's input, and the line its first row stands on where rows are lines; raises what is wrong with it."""
    if spec.kind == OPENAI:
        return open_batch(spec), 1
    if spec.kind != FILES:
        raise InvalidInput(f"this version of penstock drives no runs of the kind {spec.kind!r}")
    from penstock.runs.sources.opening import open_source as open_files

    source = open_files(spec, input_schema=input_schema)
    return (retry_source(source, spec) if RETRY_OF in spec.metadata else source), source.first_line


def _open_sink(run: Run, first_line: int | None, state_dir: Path) -> tuple[Sink, Path, Callable[[], None]]:
    """The output, the folder that is the run's own until it ends, and what removes from there what is done with."""
    if run.spec.kind == OPENAI:
        return open_answers(run.spec)
    from penstock.runs.sinks.opening import open_sink as open_files

    sink = open_files(run.spec, run.id, state=state_dir, first_line=first_line)
    return sink, sink.partial.folder, sink.discard


def opened(run: Run, source: Source, *, version: str, first_line: int | None, state_dir: Path, accept: bool) -> RunFiles:
    """The run's files at the place where it was left. Raises `Conflict` when input, settings or version are not those it
    started with; with `accept` it goes on over what is there now.
    """
    header = Header(
        run_id=run.id,
        spec_digest=spec_digest(run.spec),
        input=source.identity(),
        model=run.spec.model,
        version=version,
    )
    sink, folder, discard = _open_sink(run, first_line, state_dir)
    journal = Journal(folder / NAME)
    place = _left_at(journal, header, accept=accept)
    total = source.count()
    counts = RunCounts(total=total, done=place.counts.done, failed=place.counts.failed)
    sink.restore(place.mark)
    return RunFiles(source, sink, journal, Checkpoint(place.after, place.mark, counts), folder, discard)


def _left_at(journal: Journal, header: Header, *, accept: bool) -> Checkpoint:
    if not journal.open():
        journal.create(header)
        return Checkpoint()
    if not accept:
        refuse_changed(journal.changed(header))
    return _place(journal.last())


def _place(entry: JournalEntry | None) -> Checkpoint:
    if entry is None:
        return Checkpoint()
    counts = RunCounts(done=entry.rows_done - entry.failed, failed=entry.failed)
    return Checkpoint(entry.after, entry.mark, counts)
