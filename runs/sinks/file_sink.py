"""An output file and its errors file: grown in the partial folder, put in place by rename once all rows are there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import InternalError
from penstock.runs import files
from penstock.runs.rows import ResultBatch
from penstock.runs.sinks.errors_file import ErrorLines
from penstock.runs.sinks.partial import Partial
from penstock.runs.sinks.rows_file import RowsFile

# What is to be put where, written once the files to publish are whole: from then on publishing can only go forward.
_PLAN = "publishing.json"


@dataclass
class FileSink:
    """A `Sink`. What `publish` returns: `{"output": {path, rows, bytes, sha256}, "errors": the same or None}`.

    `publish` may be called again after a crash within it (restore first, as ever) and then finishes what was begun. The
    partial folder stays until `discard`: the caller writes the manifest in between.
    """

    partial: Partial
    rows: RowsFile
    errors: ErrorLines
    output: str
    errors_output: str
    _rows: int = 0
    _failed: int = 0
    _plan: dict[str, Any] | None = field(default=None, repr=False)

    def append(self, results: ResultBatch) -> None:
        if results.first != self._rows:
            raise InternalError(f"row {results.first} came where row {self._rows} was due")
        self.rows.append(results)
        self.errors.append(results)
        self._rows += len(results.outputs)
        self._failed += len(results.failed)

    def commit(self) -> dict[str, Any]:
        return {
            "rows": self._rows,
            "failed": self._failed,
            "output_bytes": self.rows.sync(),
            "errors_bytes": self.errors.file.sync(),
        }

    def restore(self, mark: dict[str, Any] | None) -> None:
        self._plan = self._planned()
        held = mark or {"rows": 0, "failed": 0, "output_bytes": 0, "errors_bytes": 0}
        self._rows, self._failed = held["rows"], held["failed"]
        if self._plan is None:
            self.rows.cut(held["output_bytes"])
            self.errors.file.cut(held["errors_bytes"])

    def publish(self) -> dict[str, Any]:
        plan = self._plan if self._plan is not None else self._make_plan()
        for each in (plan["output"], plan["errors"]):
            if each is not None:
                self._put(Path(each["from"]), each["told"]["path"])
        if plan["errors"] is None:
            files.remove(self.errors_output)
        return {key: None if each is None else each["told"] for key, each in plan.items()}

    def discard(self) -> None:
        """Remove the partial folder and the journal in it: after the manifest is written, or for a cancelled run."""
        self.close()
        self.partial.remove()

    def close(self) -> None:
        """Let go of the files; what was not committed may be lost."""
        self.rows.close()
        self.errors.file.close()

    def _make_plan(self) -> dict[str, Any]:
        self.errors.file.sync()
        self.errors.file.close()
        output = _step(self.rows.finish(), self.output, self._rows)
        errors = _step(self.errors.file.path, self.errors_output, self._failed) if self._failed else None
        plan = {"output": output, "errors": errors}
        with files.replacing(self.partial.folder / _PLAN) as file:
            file.write(msgspec.json.encode(plan))
        return plan

    def _planned(self) -> dict[str, Any] | None:
        path = self.partial.folder / _PLAN
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.exists() else None

    def _put(self, source: Path, target: str) -> None:
        if not source.exists():
            # An earlier call put it in place; a URL's file stays here, so that only a whole upload counts.
            return
        if files.is_url(target):
            files.upload(source, target)
            return
        path = Path(files.local_path(target))
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, path)
        files.sync_folder(path.parent)


def _step(source: Path, target: str, rows: int) -> dict[str, Any]:
    told = {"path": target, "rows": rows, "bytes": source.stat().st_size, "sha256": files.sha256(source)}
    return {"from": str(source), "told": told}
