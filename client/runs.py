"""Runs over HTTP, for both clients: the calls, the run as a value, inputs as a file, output lines as values."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeGuard
from urllib.parse import quote

from penstock.client.problems import UnexpectedAnswer
from penstock.client.protocol import FILES, JSON, Answer, HttpCall, json_bytes, object_of
from penstock.errors import BadRequest, PenstockError

POLL_S = 0.5
# An iterable is sent as JSON lines with one member each, so that a value of any type can be a row.
ROW = "input"
_FILE_ID = "file-"
FINAL = frozenset({"completed", "failed", "cancelled", "expired"})


class RowFailed(PenstockError):
    """The result of a row that has no output. `code` is the stable reason from the errors file."""

    kind = "row_failed"

    def __init__(self, message: str, *, row: int, code: str) -> None:
        super().__init__(message)
        self.row = row
        self.code = code


class RunEnded(PenstockError):
    """The run ended without being completed. `view`: its last state; rows that were written may still be downloaded."""

    kind = "run_ended"

    def __init__(self, message: str, *, view: RunView) -> None:
        super().__init__(message)
        self.view = view


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run besides its model and input. Empty or None: the gateway's default.

    `columns` maps the model's input fields to columns of the file. `carry` names the columns that the output repeats.
    `max_failed`: a number of rows, or a share such as "5%"; the run fails if more rows fail. `shard_rows`: the number of rows
    per shard; 0: learned. `tags`: words to find it by. `headers` and `query`: the parts of a request that the model's handler
    gets for all rows. `parts`: the number of parts of the file, for runners on several hosts. `webhook`: the URL that receives
    the run's end, or its `webhook_events`.
    """

    version: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    carry: tuple[str, ...] = ()
    input_format: str = ""
    output_format: str = "jsonl"
    max_failed: int | str | None = None
    shard_rows: int = 0
    deadline_s: float = 0.0
    metadata: Mapping[str, str] = field(default_factory=dict)
    tags: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    parts: int = 0
    webhook: str = ""
    webhook_events: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CancelledRuns:
    """The cancelled runs of a tag: those that waited have ended; those under way end at their next commit."""

    cancelled: int
    requested: int


@dataclass(frozen=True, slots=True)
class RunView:
    """A run at one moment. `rows` is None while their number is unknown. `busy`: the share of time that the device was busy."""

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


def is_file_id(inputs: object) -> TypeGuard[str]:
    """Whether a run's inputs are the id of an uploaded file. Any other text is the path of a local one."""
    return isinstance(inputs, str) and inputs.startswith(_FILE_ID) and not Path(inputs).exists()


def upload_call(file: Path) -> HttpCall:
    return HttpCall("POST", "/v1/files", upload=file, params={}, repeatable=False)


def file_of(answer: Answer) -> str:
    return str(object_of(answer).get("id"))


def create_call(model: str, file_id: str, options: RunOptions) -> HttpCall:
    """Carries its own idempotency key, so that a repeat after a lost answer cannot create a second run."""
    wanted: dict[str, Any] = {
        "model": model,
        "input": file_id,
        "version": options.version,
        "columns": dict(options.columns),
        "carry": list(options.carry),
        "input_format": options.input_format,
        "output_format": options.output_format,
        "max_failed": options.max_failed,
        "shard_rows": options.shard_rows,
        "deadline_s": options.deadline_s,
        "metadata": dict(options.metadata),
        "tags": list(options.tags),
        "headers": dict(options.headers),
        "query": dict(options.query),
        "parts": options.parts,
        "webhook": options.webhook,
        "webhook_events": list(options.webhook_events),
    }
    headers = {"content-type": JSON, "idempotency-key": uuid.uuid4().hex}
    content = json_bytes({name: value for name, value in wanted.items() if value})
    return HttpCall("POST", "/v1/runs", headers=headers, content=content)


def read_call(run_id: str) -> HttpCall:
    return HttpCall("GET", f"/v1/runs/{quote(run_id, safe='')}")


def page_call(*, status: str | None, tag: str | None, after: str, limit: int) -> HttpCall:
    wanted = {"status": status, "tag": tag, "after": after, "limit": str(limit)}
    return HttpCall("GET", "/v1/runs", params={name: text for name, text in wanted.items() if text})


def cancel_call(run_id: str) -> HttpCall:
    return HttpCall("POST", f"/v1/runs/{quote(run_id, safe='')}/cancel")


def retry_call(run_id: str) -> HttpCall:
    """Carries its own idempotency key, like `create_call`."""
    return HttpCall("POST", f"/v1/runs/{quote(run_id, safe='')}/retry", headers={"idempotency-key": uuid.uuid4().hex})


def cancel_tagged_call(tag: str, after: str) -> HttpCall:
    return HttpCall("POST", "/v1/runs:cancel", params={"tag": tag} | ({"after": after} if after else {}))


def _line_of(value: Any) -> bytes:
    if isinstance(value, (os.PathLike, *FILES)):
        raise BadRequest(
            "a run's values are rows of JSON, and bytes and files are none",
            hint="give run() one file with rows; send pictures one by one with submit(), or a folder with `penstock run`",
        )
    return json_bytes({ROW: value}) + b"\n"


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears at the path when the block ends. Raises `BadRequest` if it cannot be written."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except OSError as fault:
        raise BadRequest(f"{path} cannot be written: {fault.strerror}", hint="name another file") from fault
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def as_file(inputs: Iterable[Any]) -> Iterator[tuple[Path, int]]:
    """The values as a file of JSON lines, and their number. The file is deleted when the block ends."""
    with tempfile.TemporaryDirectory(prefix="penstock-run-") as folder:
        path, count = Path(folder) / "inputs.jsonl", 0
        with path.open("wb") as file:
            for value in inputs:
                file.write(_line_of(value))
                count += 1
        yield path, count


@asynccontextmanager
async def as_file_aio(inputs: Iterable[Any]) -> AsyncIterator[tuple[Path, int]]:
    """As `as_file`, without blocking the event loop while the values are written."""
    with ExitStack() as files:
        yield await asyncio.to_thread(files.enter_context, as_file(inputs))


def check_iterable(output_format: str) -> None:
    """Raises `UnexpectedAnswer` if the output cannot be read line by line."""
    if output_format != "jsonl":
        raise UnexpectedAnswer(f"a run that writes {output_format} has no results to iterate", hint="download its output file")


def require_completed(view: RunView) -> RunView:
    """The same view. Raises `RunEnded` for a run that ended in any other way."""
    if view.status == "completed":
        return view
    why = f": {view.error.get('message')}" if view.error else ""
    raise RunEnded(f"run {view.id} is {view.status}{why}", view=view)


class OutputRows:
    """Turns the lines of an output file into values, in order."""

    def __init__(self) -> None:
        self._row = 0

    def value(self, line: str, failure: RowFailed | None) -> Any:
        """The row's output, or `failure`, the next entry of the errors file, if that entry is about this row."""
        row, self._row = self._row, self._row + 1
        if failure is not None and failure.row == row:
            return failure
        return json.loads(line).get("output")


def row_failure(line: str) -> RowFailed | None:
    """One line of the errors file as an error; None for the empty line that stands for the end of the file."""
    if not line:
        return None
    entry = json.loads(line)
    return RowFailed(str(entry.get("message", "")), row=int(entry["row"]), code=str(entry.get("code", "")))


OnProgress = Callable[[RunView], None]
