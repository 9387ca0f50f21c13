"""An OpenAI batch between its file and its answers: a source of the lines' inputs and a sink of output and error lines.

A line of the embeddings endpoint that has several inputs comes to as many rows; the sink puts them together again.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from penstock.embedding import EmbeddingRequest, NoEmbedding, answer_of, vector_of
from penstock.errors import BadParameter
from penstock.run import RunSpec
from penstock.runs.openai.lines import BatchLine, Checked, check_file, raw_lines, read_line
from penstock.runs.rows import ResultBatch, RowBatch, RowError

# Of each row, beside its input: the line's id, how many rows the line has, and what an embedding is to look like.
ID, PARTS, FORM = "custom_id", "parts", "form"
_FLOAT, _BASE64 = "float", "base64"
_encoder = msgspec.json.Encoder()


class _Place(Struct):
    """Where the source goes on: a byte of the file, the rows of that line that were given, and the number of the next row."""

    offset: int = 0
    part: int = 0
    row: int = 0


class OpenAISource:
    """The inputs of a batch's lines. `open` checks the whole file first and raises `InvalidBatch`."""

    media = "application/json"

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._path = Path(spec.input)
        self._checked: Checked | None = None

    def open(self) -> OpenAISource:
        self._checked = check_file(self._path, self._spec)
        return self

    def identity(self) -> dict[str, Any]:
        told = self._path.stat()
        return {"name": self._path.name, "size_bytes": told.st_size, "changed_ns": told.st_mtime_ns}

    def count(self) -> int | None:
        return None if self._checked is None else self._checked.rows

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> RowBatch | None:
        place = msgspec.convert(after or {}, _Place)
        first, taken = place.row, _Taken()
        for text in raw_lines(self._path, offset=place.offset):
            line = read_line(text, self._spec)
            given = line.inputs[place.part : place.part + rows - len(taken.inputs)]
            taken.add(line, given, size=len(text))
            place.part += len(given)
            if place.part == len(line.inputs):
                place.offset, place.part = place.offset + len(text), 0
            if len(taken.inputs) >= rows or taken.size >= size_bytes:
                break
        place.row = first + len(taken.inputs)
        return RowBatch(first, taken.inputs, taken.carried, msgspec.structs.asdict(place)) if taken.inputs else None

    def close(self) -> None:
        """Nothing is held between two reads."""


@dataclass(slots=True)
class _Taken:
    inputs: list[Any] = field(default_factory=list)
    carried: dict[str, list[Any]] = field(default_factory=lambda: {ID: [], PARTS: [], FORM: []})
    size: int = 0

    def add(self, line: BatchLine, given: list[Any], *, size: int) -> None:
        count, asked = len(given), line.embedding
        self.inputs += given
        self.carried[ID] += [line.custom_id] * count
        self.carried[PARTS] += [len(line.inputs)] * count
        self.carried[FORM] += [_form(asked)] * count
        self.size += size


def _form(asked: EmbeddingRequest | None) -> list[Any]:
    """Plain values, so that they travel like any other column."""
    return [] if asked is None else [_BASE64 if asked.base64 else _FLOAT, asked.dimensions, asked.token_count]


class _Mark(Struct):
    """Bytes of both files, lines written to each, and the answers of a line of which rows are still to come."""

    output_bytes: int = 0
    error_bytes: int = 0
    completed: int = 0
    failed: int = 0
    pending: list[Any] = []
    fault: list[str] | None = None


class OpenAISink:
    """Output and error lines, under other names until `publish`. Both files are there in the end, the empty one not."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._output, self._errors = Path(spec.output), Path(spec.errors)
        self._files: dict[Path, FileIO] = {}
        self._mark = _Mark()
        self._lines: tuple[list[bytes], list[bytes]] = ([], [])

    def append(self, results: ResultBatch) -> None:
        for place, output in enumerate(results.outputs):
            told = [results.carried[name][place] for name in (ID, PARTS, FORM)]
            self._row(told[0], told[1], told[2], output, results.failed.get(place))
        for path, lines in zip((self._output, self._errors), self._lines, strict=True):
            # Nothing is held back: a sink that is given up must not write later, when another may be at work.
            _write(self._opened()[path], b"".join(lines))
            lines.clear()

    def commit(self) -> dict[str, Any]:
        for file in self._opened().values():
            os.fsync(file.fileno())
        return {**msgspec.structs.asdict(self._mark), "pending": list(self._mark.pending)}

    def restore(self, mark: dict[str, Any] | None) -> None:
        self._mark = msgspec.convert(mark or {}, _Mark)
        opened = self._opened()
        for path, size in ((self._output, self._mark.output_bytes), (self._errors, self._mark.error_bytes)):
            opened[path].truncate(size)
            opened[path].seek(size)

    def publish(self) -> dict[str, Any]:
        self.commit()
        published = {
            name: _published(self._files.pop(path), path) for name, path in (("output", self._output), ("errors", self._errors))
        }
        mark = self._mark
        lines = {"total": mark.completed + mark.failed, "completed": mark.completed, "failed": mark.failed}
        return {**published, "lines": lines}

    def discard(self) -> None:
        """Remove what is not published."""
        self.close()
        for path in (self._output, self._errors):
            _beside(path).unlink(missing_ok=True)

    def close(self) -> None:
        """Leave what is not published where it is."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _row(self, custom_id: str, parts: int, form: list[Any], output: Any, fault: RowError | None) -> None:
        mark = self._mark
        mark.pending.append(None if fault else output)
        if fault is not None and mark.fault is None:
            mark.fault = [fault.code, fault.message]
        if len(mark.pending) < parts:
            return
        self._line(custom_id, form)
        mark.pending, mark.fault = [], None

    def _line(self, custom_id: str, form: list[Any]) -> None:
        mark, line_id = self._mark, _line_id(self._spec, custom_id)
        told: dict[str, Any] = {"id": line_id, "custom_id": custom_id, "response": None, "error": None}
        fault = mark.fault
        if fault is None:
            try:
                body = self._body(form, mark.pending)
                told["response"] = {"status_code": 200, "request_id": line_id, "body": body}
            except (BadParameter, NoEmbedding) as error:
                fault = [error.kind, error.message]
        if fault is not None:
            told["error"] = {"code": _CODES.get(fault[0], fault[0]), "message": fault[1]}
        self._told(told, good=fault is None)

    def _told(self, told: dict[str, Any], *, good: bool) -> None:
        text, mark = _encoder.encode(told) + b"\n", self._mark
        self._lines[0 if good else 1].append(text)
        if good:
            mark.output_bytes += len(text)
            mark.completed += 1
        else:
            mark.error_bytes += len(text)
            mark.failed += 1

    def _body(self, form: list[Any], outputs: list[Any]) -> Any:
        if not form:
            return _plain(outputs[0])
        encoding, dimensions, tokens = form
        asked = EmbeddingRequest(self._spec.model, (), base64=encoding == _BASE64, dimensions=dimensions)
        body = answer_of(asked, [vector_of(output, self._spec.model) for output in outputs])
        body["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
        return body

    def _opened(self) -> dict[Path, FileIO]:
        for path in (self._output, self._errors):
            if path not in self._files:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(_beside(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._files[path] = FileIO(descriptor, "r+b")
        return self._files


# What a run calls a row that it did not come to is what OpenAI calls it here.
_CODES = {"expired": "batch_expired", "cancelled": "batch_cancelled"}


def unfinished(
    source: OpenAISource, after: dict[str, Any] | None, error: RowError, *, rows: int = 1_000
) -> Iterator[ResultBatch]:
    """Every row behind `after` as failed for one reason: what an expired batch says of the lines it did not come to."""
    while (batch := source.read(after, rows=rows, size_bytes=1 << 20)) is not None:
        failed = dict.fromkeys(range(len(batch)), error)
        yield ResultBatch(batch.first, [None] * len(batch), batch.carried, failed)
        after = batch.after


def _plain(output: Any) -> Any:
    """Bytes have no JSON form of their own."""
    return {"x_base64": base64.b64encode(output).decode("ascii")} if isinstance(output, bytes) else output


def _line_id(spec: RunSpec, custom_id: str) -> str:
    """The same however often the line is written."""
    text = f"{Path(spec.output).parent.name}\0{custom_id}".encode("utf-8", "surrogatepass")
    return f"batch_req_{hashlib.blake2b(text, digest_size=12).hexdigest()}"


def _write(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _published(file: FileIO, path: Path) -> dict[str, Any] | None:
    """An empty file is not kept: a caller is told of the files that have something in them."""
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = file.seek(0, os.SEEK_END)
    file.close()
    if not size:
        _beside(path).unlink()
        return None
    _beside(path).replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return {"path": str(path), "bytes": size, "sha256": digest}
