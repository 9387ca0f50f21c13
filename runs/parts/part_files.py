"""The files of one part, in its own folder in the run's partial folder: journal, rows and, at its end, a report."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from penstock.errors import ConfigError, Conflict, NotFound, PenstockError
from penstock.run import Run, RunPart
from penstock.runs import files
from penstock.runs.parts.splitting import identity_of, listing_of
from penstock.runs.sinks.appendable import Appendable
from penstock.runs.sinks.file_sink import FileSink
from penstock.runs.sinks.opening import output_format, rows_file
from penstock.runs.sinks.partial import PartialFolder, partial_of
from penstock.runs.sinks.rows_file import ErrorLines
from penstock.runs.sources.opening import FileSource

_REPORT = "part.json"
ERRORS = "errors.jsonl"


class PartNotHere(PenstockError):
    """This process cannot work on the run or part, but another may: it is given back."""

    kind = "given_back"


PART_HELD = "part_held"


class PartHeld(PartNotHere):
    """Another process, frozen or cut off, still has the files of the part."""

    kind = PART_HELD


class PartReport(Struct, frozen=True, kw_only=True):
    """The output of a completed part: `bytes` and `sha256` of its rows, in the form that is joined."""

    rows: int
    failed: int
    bytes: int
    sha256: str
    errors_bytes: int


# D106: docs/design/house.md
_PART_REPORT = msgspec.json.Decoder(PartReport)


@dataclass
class PartSink(FileSink):
    """The sink of a part. Its rows stay in the part's folder until the parts are joined; `publish` writes their report."""

    def publish(self) -> dict[str, Any]:
        mark = self.commit()
        self.close()
        report = PartReport(
            rows=self._rows,
            failed=self._failed,
            bytes=mark["output_bytes"],
            sha256=files.sha256(self.rows.file.path),
            errors_bytes=mark["errors_bytes"],
        )
        with files.atomic_write(self.partial.folder / _REPORT) as file:
            file.write(msgspec.json.encode(report))
        return {"part": msgspec.to_builtins(report)}

    def discard(self) -> None:
        """The run's partial folder is removed as a whole, when the run is published."""
        self.close()


def part_folder(run_folder: Path, number: int) -> Path:
    return run_folder / f"part-{number:04d}"


def read_report(folder: Path) -> PartReport | None:
    """The report of a completed part; None if its driver has not reached its end."""
    path = folder / _REPORT
    return _PART_REPORT.decode(path.read_bytes()) if path.exists() else None


def run_folder(run: Run, state: Path) -> Path:
    """The partial folder of a run that was split. Raises `PartNotHere` if this host does not have it."""
    partial = partial_of(run.spec.output, state)
    if not partial.is_of(run.part_of or run.id):
        raise PartNotHere(
            f"{os.uname().nodename} does not have {partial.folder}, where the run was split",
            hint="the drivers of one run see its output under the same path",
        )
    return partial.folder


def open_part_sink(run: Run, part: RunPart, *, state: Path, first_line: int | None) -> PartSink:
    """Call `restore` next. Raises `PartNotHere` if this host does not have the run's partial folder."""
    try:
        folder = part_folder(run_folder(run, state), part.number)
        folder.mkdir(exist_ok=True)
        closed = [path for path in (folder, *folder.iterdir()) if not os.access(path, os.W_OK)]
    except OSError as error:
        raise PartNotHere(f"{os.uname().nodename} cannot write the output: {error}") from error
    if closed:
        raise PartNotHere(f"{os.uname().nodename} cannot write the output: this process may not write {closed[0]}")
    errors = ErrorLines(Appendable(folder / ERRORS), first_line)
    return PartSink(PartialFolder(folder, run.spec.output), rows_file(output_format(run.spec), folder), errors, "", "")


def need_same_input(source: FileSource, part: RunPart, *, accept_changes: bool) -> None:
    """Raises `Conflict` if the input has changed since it was split, and `PartNotHere` on a host that has other files under
    the same names.
    """
    changed = listing_of(source) != part.listing
    if not changed and not accept_changes:
        changed = identity_of(source.of_part(part)) != part.identity
    if not changed:
        return
    if part.host != os.uname().nodename:
        raise PartNotHere(f"the input on {os.uname().nodename} is not the one that was split on {part.host}")
    raise Conflict("the input has changed since the run was split into parts", hint="start a new run, with --overwrite")


def give_back(error: PenstockError | OSError) -> PartNotHere:
    """The refusal of a part whose input this process cannot read."""
    return PartNotHere(f"{os.uname().nodename} cannot read the input: {error}")


# The errors of a host that lacks a file, a mount or a library that another host may have.
UNREADABLE = (NotFound, ConfigError, OSError)
