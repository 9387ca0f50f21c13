"""Runs over HTTP, for both clients: the calls, what the gateway tells of a run, inputs as a file, output lines as values."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.client.problems import UnexpectedAnswer
from penstock.client.protocol import JSON, Answer, HttpCall, json_bytes, object_of
from penstock.errors import PenstockError

POLL_S = 0.5
# An iterable travels as JSON lines with one member each: so any value is a row, whatever its type.
ROW = "input"
FINAL = frozenset({"completed", "failed", "cancelled", "expired"})


class RowFailed(PenstockError):
    """Stands in a run's results where a row has no output; `code` says why, in the stable word of the errors file."""

    kind = "row_failed"

    def __init__(self, message: str, *, row: int, code: str) -> None:
        super().__init__(message)
        self.row = row
        self.code = code


class RunEnded(PenstockError):
    """The run ended without being completed. `view` tells how; what it wrote before may still be downloaded."""

    kind = "run_ended"

    def __init__(self, message: str, *, view: RunView) -> None:
        super().__init__(message)
        self.view = view


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run may be told besides its model and input. Empty or None: the gateway's defaults.

    `columns` maps the model's input fields to columns of the file; `carry` names columns that the output repeats.
    """

    version: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    carry: tuple[str, ...] = ()
    input_format: str = ""
    output_format: str = "jsonl"
    max_failed: int | None = None
    deadline_s: float = 0.0
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunView:
    """A run at one moment. `rows` is None while nobody knows how many there are; `busy` is the device's share of the time."""

    id: str
    status: str
    rows: int | None = None
    done: int = 0
    failed: int = 0
    rows_per_s: float = 0.0
    eta_s: float | None = None
    busy: float | None = None
    output: str = ""
    errors: str = ""
    error: Mapping[str, Any] | None = None
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def final(self) -> bool:
        return self.status in FINAL


def run_view(body: Mapping[str, Any]) -> RunView:
    progress, links = body.get("progress"), body.get("links")
    if not isinstance(body.get("id"), str) or not isinstance(progress, dict) or not isinstance(links, dict):
        raise UnexpectedAnswer("the answer is not a run: it has no 'id', 'progress' and 'links'")
    return RunView(
        id=body["id"],
        status=str(body.get("status", "")),
        rows=progress.get("rows"),
        done=int(progress.get("done") or 0),
        failed=int(progress.get("failed") or 0),
        rows_per_s=float(progress.get("rows_per_s") or 0.0),
        eta_s=progress.get("eta_s"),
        busy=progress.get("busy"),
        output=str(links.get("output") or ""),
        errors=str(links.get("errors") or ""),
        error=body.get("error"),
        body=body,
    )


def run_of(answer: Answer) -> RunView:
    return run_view(object_of(answer))


def upload_call(file: Path) -> HttpCall:
    return HttpCall("POST", "/v1/files", upload=file, params={}, repeatable=False)


def file_of(answer: Answer) -> str:
    return str(object_of(answer).get("id"))


def create_call(model: str, file_id: str, options: RunOptions) -> HttpCall:
    """Carries a key of its own: repeating it after a lost answer cannot make a second run."""
    asked: dict[str, Any] = {
        "model": model,
        "input": file_id,
        "version": options.version,
        "columns": dict(options.columns),
        "carry": list(options.carry),
        "input_format": options.input_format,
        "output_format": options.output_format,
        "max_failed": options.max_failed,
        "deadline_s": options.deadline_s,
        "metadata": dict(options.metadata),
    }
    headers = {"content-type": JSON, "idempotency-key": uuid.uuid4().hex}
    content = json_bytes({name: value for name, value in asked.items() if value})
    return HttpCall("POST", "/v1/runs", headers=headers, content=content)


def read_call(run_id: str) -> HttpCall:
    return HttpCall("GET", f"/v1/runs/{quote(run_id, safe='')}")


def cancel_call(run_id: str) -> HttpCall:
    return HttpCall("POST", f"/v1/runs/{quote(run_id, safe='')}/cancel")


@contextmanager
def as_file(inputs: Iterable[Any]) -> Iterator[tuple[Path, int]]:
    """The values as a file of JSON lines, and how many they are; it is gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix="penstock-run-") as folder:
        path, count = Path(folder) / "inputs.jsonl", 0
        with path.open("wb") as file:
            for value in inputs:
                file.write(json_bytes({ROW: value}) + b"\n")
                count += 1
        yield path, count


def check_iterable(output_format: str) -> None:
    """Raises `UnexpectedAnswer` where results cannot be read line by line."""
    if output_format != "jsonl":
        raise UnexpectedAnswer(f"a run that writes {output_format} has no results to iterate", hint="download its output file")


def completed(view: RunView) -> RunView:
    """The same; raises `RunEnded` for a run that ended in any other way."""
    if view.status == "completed":
        return view
    why = f": {view.error.get('message')}" if view.error else ""
    raise RunEnded(f"run {view.id} is {view.status}{why}", view=view)


class Rows:
    """Turns output lines into values, in order; a failed row becomes the `RowFailed` that the errors file tells of."""

    def __init__(self) -> None:
        self._row = 0

    def value(self, line: str, failed: RowFailed | None) -> tuple[Any, bool]:
        """The row's value, and whether `failed` was this row's, so that the next one is to be read."""
        row, self._row = self._row, self._row + 1
        if failed is not None and failed.row == row:
            return failed, True
        return json.loads(line).get("output"), False


def failure(line: str) -> RowFailed:
    told = json.loads(line)
    return RowFailed(str(told.get("message", "")), row=int(told["row"]), code=str(told.get("code", "")))


OnProgress = Callable[[RunView], None]
