"""The files of one run: its source, its sink, and the journal of their checkpoints."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.errors import InvalidInput
from penstock.run import RETRY_OF, Run, RunCounts, RunPart, RunSpec, lasting_json
from penstock.runs.driver import Checkpoint
from penstock.runs.files import is_url
from penstock.runs.journal import NAME, Header, Journal, JournalEntry, refuse_changed
from penstock.runs.kinds import ClaimedOutput, RunKind
from penstock.runs.rows import RowSource, Sink

T = TypeVar("T")
# Settings that do not affect the output, with the values for the digest of a spec; a resumed run may change them.
_NOT_IN_DIGEST: dict[str, Any] = {
    "window_rows": 10_000,
    "shard_rows": 0,
    "max_failed": None,
    "deadline_s": 0.0,
    "overwrite": False,
    "metadata": {},
    "tags": (),
    "parts": 1,
}
# The members that a digest always has. Journals of runs under way hold it, so it may not change with the next new member.
_FIRST_MEMBERS = (
    "model input output version kind input_format output_format columns carry errors max_failed shard_rows window_rows "
    "deadline_s overwrite endpoint metadata tags headers query parts"
)


@dataclass(slots=True)
class RunFiles:
    """Open while a run is driven. `checkpoint`: the end of the last drive, or the beginning."""

    source: RowSource
    sink: Sink
    journal: Journal
    checkpoint: Checkpoint
    folder: Path
    discard: Callable[[], None]

    def commit(self, checkpoint: Checkpoint) -> None:
        """Make a checkpoint durable. Commit the sink first."""
        counts = checkpoint.counts
        self.journal.append(
            JournalEntry(
                rows_done=counts.done + counts.failed,
                failed=counts.failed,
                after=checkpoint.after or {},
                mark=checkpoint.mark or {},
                at=time.time(),
            )
        )

    def close(self) -> None:
        self.source.close()
        self.sink.close()
        # Last, because it releases the lock: the sink may write rows until it is closed.
        self.journal.close()


def spec_digest(spec: RunSpec) -> str:
    """Equal for specs with equal outputs."""
    digested = msgspec.structs.replace(spec, **_NOT_IN_DIGEST)
    return hashlib.sha256(lasting_json(digested, _FIRST_MEMBERS)).hexdigest()


def open_part(
    spec: RunSpec, part: RunPart, input_schema: dict[str, Any] | None, *, accept_changes: bool
) -> tuple[RowSource, int | None]:
    """A part of the run's input, and the line number of its first row as if it were the input's first. Raises `PartNotHere` if
    this host does not have the input.
    """
    from penstock.runs.parts.part_files import need_same_input
    from penstock.runs.sources.opening import open_source as open_files

    source = readable(lambda: open_files(spec, input_schema=input_schema))
    readable(lambda: need_same_input(source, part, accept_changes=accept_changes))
    return source.of_part(part), source.first_line


def readable(read: Callable[[], T]) -> T:
    """The result of `read`. Raises `PartNotHere` if this process cannot read the input, because another may."""
    from penstock.runs.parts.part_files import UNREADABLE, give_back

    try:
        return read()
    except UNREADABLE as error:
        raise give_back(error) from error


def need_joinable(kind: RunKind, spec: RunSpec) -> None:
    """Raises `InvalidInput` for a run that cannot have several parts."""
    if not kind.has_parts or RETRY_OF in spec.metadata:
        raise InvalidInput("only runs over files can have several parts, and none that repeats failed rows")
    if is_url(spec.output):
        raise InvalidInput(
            f"a run of several parts cannot write to {spec.output}: its drivers put their rows together in one place",
            hint="write to a path that all drivers share, then copy the output; or leave out the parts",
        )


def split_source(source: RowSource, parts: int) -> list[RunPart]:
    """The parts of an input that `open_source` returned for a run that is joinable."""
    from penstock.runs.parts.splitting import split_input
    from penstock.runs.sources.folder import FolderSource
    from penstock.runs.sources.row_files import FilesSource

    assert isinstance(source, (FolderSource, FilesSource))
    return split_input(source, parts)


def claim_part(run: Run, part: RunPart, first_line: int | None, state_dir: Path) -> ClaimedOutput:
    """The folder of a part. Raises `PartNotHere` if this host does not have the run's."""
    from penstock.runs.parts.part_files import open_part_sink

    sink = open_part_sink(run, part, state=state_dir, first_line=first_line)
    return ClaimedOutput(sink, Journal(sink.partial.folder / NAME), sink.partial.folder, sink.discard)


def open_run_files(run: Run, source: RowSource, output: ClaimedOutput, *, version: str, accept_changes: bool) -> RunFiles:
    """The run's files at its last checkpoint. Raises `Conflict` when input, settings or version have changed since its start,
    unless `accept_changes` is set: then the run continues with the current ones.
    """
    header = Header(
        run_id=run.id,
        spec_digest=spec_digest(run.spec),
        input=source.identity() if run.part is None else source.identity() | {"part": msgspec.to_builtins(run.part)},
        model=run.spec.model,
        version=version,
    )
    last = _last_checkpoint(output.journal, header, accept_changes=accept_changes)
    total = source.count()
    counts = RunCounts(total=total, done=last.counts.done, failed=last.counts.failed)
    output.sink.restore(last.mark)
    checkpoint = Checkpoint(last.after, last.mark, counts)
    return RunFiles(source, output.sink, output.journal, checkpoint, output.folder, output.discard)


def _last_checkpoint(journal: Journal, header: Header, *, accept_changes: bool) -> Checkpoint:
    if not journal.open():
        journal.create(header)
        return Checkpoint()
    if not accept_changes:
        refuse_changed(journal.changed(header))
    return _checkpoint_of(journal.last())


def _checkpoint_of(entry: JournalEntry | None) -> Checkpoint:
    if entry is None:
        return Checkpoint()
    counts = RunCounts(done=entry.rows_done - entry.failed, failed=entry.failed)
    return Checkpoint(entry.after, entry.mark, counts)


def remote_fault(error: Exception) -> str:
    """What an object store refused, in one line; empty for an error of any other kind."""
    if (exceptions := sys.modules.get("obstore.exceptions")) is None or not isinstance(error, exceptions.BaseError):
        return ""
    from penstock.broker.blobs.objects import said

    return f"the object store: {said(error)}; check that the bucket exists, and the credentials in the environment"
