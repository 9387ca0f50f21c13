"""An output file and its errors file: grown in the partial folder, renamed to their final names when all rows are there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import InternalError
from penstock.runs import files
from penstock.runs.rows import ResultBatch
from penstock.runs.sinks.partial import PartialFolder
from penstock.runs.sinks.rows_file import ErrorLines, RowsFile

# The plan of publishing, written when the files are complete: from then on publishing can only go forward.
_PLAN = "publishing.json"


@dataclass
class FileSink:
    """A `Sink`. `publish` returns `{"output": {path, rows, bytes, sha256}, "errors": the same or None}`.

    After a crash within `publish`, a call of it (following `restore`, as always) finishes the publication. The partial folder
    stays until `discard`: the caller writes the manifest in between.
    """

    partial: PartialFolder
    rows: RowsFile
    errors: ErrorLines
    output: str
    errors_output: str
    _rows: int = 0
    _failed: int = 0
    _plan: dict[str, Any] | None = field(default=None, repr=False)

    def append(self, results: ResultBatch) -> None:
        if results.first != self._rows:
            raise InternalError(f"row {results.first} was appended, row {self._rows} was expected; this is a bug")
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
        self._plan = self._read_plan()
        mark = mark or {"rows": 0, "failed": 0, "output_bytes": 0, "errors_bytes": 0}
        self._rows, self._failed = mark["rows"], mark["failed"]
        if self._plan is None:
            self.rows.cut(mark["output_bytes"])
            self.errors.file.cut(mark["errors_bytes"])

    @property
    def is_publishing(self) -> bool:
        """Whether an earlier call of `publish` has begun; known after `restore`."""
        return self._plan is not None

    def publish(self) -> dict[str, Any]:
        plan = self._plan if self._plan is not None else self._make_plan()
        for each in (plan["output"], plan["errors"]):
            if each is not None:
                self._put(Path(each["from"]), each["report"]["path"])
        if plan["errors"] is None:
            files.remove(self.errors_output)
        return {key: None if each is None else each["report"] for key, each in plan.items()}

    def discard(self) -> None:
        """Remove the partial folder with the journal: after the manifest is written, or for a cancelled run."""
        self.close()
        self.partial.remove()

    def close(self) -> None:
        """Close the files; uncommitted rows may be lost."""
        self.rows.close()
        self.errors.file.close()

    def _make_plan(self) -> dict[str, Any]:
        self.errors.file.sync()
        self.errors.file.close()
        output = _step(self.rows.finish(), self.output, self._rows)
        errors = _step(self.errors.file.path, self.errors_output, self._failed) if self._failed else None
        plan = {"output": output, "errors": errors}
        with files.atomic_write(self.partial.folder / _PLAN) as file:
            file.write(msgspec.json.encode(plan))
        return plan

    def _read_plan(self) -> dict[str, Any] | None:
        path = self.partial.folder / _PLAN
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.exists() else None

    def _put(self, source: Path, target: str) -> None:
        if not source.exists():
            # An earlier call renamed it. A file that goes to a URL stays in the folder: its upload may have been cut short.
            return
        if files.is_url(target):
            files.upload(source, target)
            return
        path = Path(files.local_path(target))
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, path)
        files.sync_folder(path.parent)


def _step(source: Path, target: str, rows: int) -> dict[str, Any]:
    report = {"path": target, "rows": rows, "bytes": source.stat().st_size, "sha256": files.sha256(source)}
    return {"from": str(source), "report": report}
