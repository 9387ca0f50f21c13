"""Kinds of runs: how the runs of one kind read their input and write their output. Extensions may add kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import InvalidInput
from penstock.extension import installed, load_part
from penstock.run import FILES, RETRY_OF, Run, RunSpec, RunState
from penstock.runs.journal import NAME, Journal
from penstock.runs.rows import RowError, RowSource, Sink
from penstock.runs.sources.retry import retry_source


@dataclass(slots=True)
class ClaimedOutput:
    """The run's output and the run's own folder. Nothing is changed there before the journal is acquired."""

    sink: Sink
    journal: Journal
    folder: Path
    discard: Callable[[], None]

    def close(self) -> None:
        self.sink.close()
        self.journal.close()


@dataclass(frozen=True, slots=True)
class RunKind:
    """The functions that drive the runs of one kind; an extension lists its kinds in `Extension.run_kinds`.

    `open_source`: the input of a run for a model with this schema, and the line number of its first row where rows are lines;
    raises for faults of the input. `claim_output`: the output of a run whose rows begin in that line, with the state folder of
    this process; raises `Conflict` if it exists, or belongs to another run. `check`: called before the run's model is looked
    up; raises for an input that cannot run. `unreached`: by the state of an early end, the error of the rows that were not
    reached; the run then publishes its output. A run that ends in another state is left for a resume. `is_limited`: too many
    failed rows end a run. `has_manifest`: a manifest is written beside the output. `has_parts`: the input may be split.
    """

    open_source: Callable[[RunSpec, dict[str, Any] | None], tuple[RowSource, int | None]]
    claim_output: Callable[[Run, int | None, Path], ClaimedOutput]
    check: Callable[[RunSpec], None] = lambda spec: None
    unreached: Mapping[RunState, RowError] = field(default_factory=dict)
    is_limited: bool = False
    has_manifest: bool = False
    has_parts: bool = False


def run_kind(name: str) -> RunKind:
    """The kind in a run's record. Raises `InvalidInput` for a kind that is not installed here."""
    if name == FILES:
        return OVER_FILES
    parts = {kind: part for extension in installed() for kind, part in extension.run_kinds.items()}
    if name not in parts:
        raise InvalidInput(f"this version of penstock cannot drive runs of the kind {name!r}")
    kind: RunKind = load_part(parts[name])
    return kind


def _open_files(spec: RunSpec, input_schema: dict[str, Any] | None) -> tuple[RowSource, int | None]:
    from penstock.runs.sources.opening import open_source

    source = open_source(spec, input_schema=input_schema)
    return (retry_source(source, spec) if RETRY_OF in spec.metadata else source), source.first_line


def _claim_files(run: Run, first_line: int | None, state_dir: Path) -> ClaimedOutput:
    from penstock.runs.sinks.opening import open_sink

    files = open_sink(run.spec, run.id, state=state_dir, first_line=first_line)
    return ClaimedOutput(files, Journal(files.partial.folder / NAME), files.partial.folder, files.discard)


# A run that a command drives, and a run of many parts, is left for a resume instead (`Execution`).
OVER_FILES = RunKind(
    _open_files,
    _claim_files,
    unreached={
        RunState.CANCELLED: RowError("cancelled", "the run was cancelled before this row"),
        RunState.EXPIRED: RowError("expired", "the run expired before this row"),
    },
    is_limited=True,
    has_manifest=True,
    has_parts=True,
)
