"""An OpenAI batch as source and sink (D41): the inputs of its file's lines, and the lines of its output and error files.

A line of the embeddings endpoint with several inputs becomes several rows; the sink joins their outputs again.
"""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from penstock.errors import BadParameter
from penstock.extensions.openai.embedding import EmbeddingRequest, NoEmbedding, answer_of, vector_of
from penstock.extensions.openai.runs.lines import BatchLine, BatchSize, check_file, raw_lines, read_line
from penstock.run import RunSpec
from penstock.runs.files import identity
from penstock.runs.rows import ResultBatch, RowBatch, RowError

# D41: docs/design/gateway.md
# The carried columns of a row: its line's id, the line's number of rows, the form of embedding that the line asks for.
ID, PARTS, FORM = "custom_id", "parts", "form"
_FLOAT, _BASE64 = "float", "base64"
_encoder = msgspec.json.Encoder()


class _Position(Struct):
    """The position of the source: a byte offset, the rows of that line that were read, the number of the next row."""

    offset: int = 0
    part: int = 0
    row: int = 0


# `convert` reads the type as a decoder does: D106.
msgspec.json.Decoder(_Position)


class OpenAISource:
    """The inputs of a batch's lines. `open` checks the whole file; it raises `InvalidBatch`."""

    media = "application/json"

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._path = Path(spec.input)
        self._size: BatchSize | None = None

    def open(self) -> OpenAISource:
        self._size = check_file(self._path, self._spec)
        return self

    def identity(self) -> dict[str, Any]:
        return {"files": [identity(str(self._path)) | {"name": self._path.name}]}

    def count(self) -> int | None:
        return None if self._size is None else self._size.rows

    def share_before(self, after: dict[str, Any] | None) -> float | None:
        return None

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> RowBatch | None:
        position = msgspec.convert(after or {}, _Position)
        first, buffer = position.row, _RowBuffer()
        for text in raw_lines(self._path, offset=position.offset):
            line = read_line(text, self._spec)
            inputs = line.inputs[position.part : position.part + rows - len(buffer.inputs)]
            buffer.add(line, inputs, size=len(text))
            position.part += len(inputs)
            if position.part == len(line.inputs):
                position.offset, position.part = position.offset + len(text), 0
            if len(buffer.inputs) >= rows or buffer.size >= size_bytes:
                break
        position.row = first + len(buffer.inputs)
        return RowBatch(first, buffer.inputs, buffer.carried, msgspec.structs.asdict(position)) if buffer.inputs else None

    def close(self) -> None:
        """No file stays open between reads."""


@dataclass(slots=True)
class _RowBuffer:
    """The rows of one read, and the bytes of their lines."""

    inputs: list[Any] = field(default_factory=list)
    carried: dict[str, list[Any]] = field(default_factory=lambda: {ID: [], PARTS: [], FORM: []})
    size: int = 0

    def add(self, line: BatchLine, inputs: list[Any], *, size: int) -> None:
        count = len(inputs)
        self.inputs += inputs
        self.carried[ID] += [line.custom_id] * count
        self.carried[PARTS] += [len(line.inputs)] * count
        self.carried[FORM] += [_form(line.embedding)] * count
        self.size += size


def _form(request: EmbeddingRequest | None) -> list[Any]:
    """The form of embedding as plain values, which can be carried like any other column."""
    return [] if request is None else [_BASE64 if request.base64 else _FLOAT, request.dimensions, request.token_count]


class _Mark(Struct):
    """Bytes and lines of both files, and the outputs of a line whose other rows are still missing."""

    output_bytes: int = 0
    error_bytes: int = 0
    completed: int = 0
    failed: int = 0
    not_reached: int = 0
    pending: list[Any] = []
    fault: list[str] | None = None


# `convert` reads the type as a decoder does: D106.
msgspec.json.Decoder(_Mark)


class OpenAISink:
    """Output and error lines, in files with other names until `publish`, which drops an empty file."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._output, self._errors = Path(spec.output), Path(spec.errors)
        self._files: dict[Path, FileIO] = {}
        self._mark = _Mark()
        self._lines: tuple[list[bytes], list[bytes]] = ([], [])

    def append(self, results: ResultBatch) -> None:
        for place, output in enumerate(results.outputs):
            custom_id, parts, form = (results.carried[name][place] for name in (ID, PARTS, FORM))
            self._add_row(custom_id, parts, form, output, results.failed.get(place))
        for path, lines in zip((self._output, self._errors), self._lines, strict=True):
            # Written at once: an abandoned sink must not write later, when another one may use the file.
            _write(self._open_files()[path], b"".join(lines))
            lines.clear()

    def commit(self) -> dict[str, Any]:
        for file in self._open_files().values():
            os.fsync(file.fileno())
        return {**msgspec.structs.asdict(self._mark), "pending": list(self._mark.pending)}

    def restore(self, mark: dict[str, Any] | None) -> None:
        self._mark = msgspec.convert(mark or {}, _Mark)
        for path in (self._output, self._errors):
            _unpublish(path)
        files = self._open_files()
        for path, size in ((self._output, self._mark.output_bytes), (self._errors, self._mark.error_bytes)):
            files[path].truncate(size)
            files[path].seek(size)

    def publish(self) -> dict[str, Any]:
        self.commit()
        published = {
            name: _publish_file(self._files.pop(path), path)
            for name, path in (("output", self._output), ("errors", self._errors))
        }
        mark = self._mark
        total = mark.completed + mark.failed + mark.not_reached
        lines = {"total": total, "completed": mark.completed, "failed": mark.failed}
        return {**published, "lines": lines}

    def discard(self) -> None:
        """Remove the unpublished files."""
        self.close()
        for path in (self._output, self._errors):
            _beside(path).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the unpublished files and leave them in place."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _add_row(self, custom_id: str, parts: int, form: list[Any], output: Any, fault: RowError | None) -> None:
        mark = self._mark
        mark.pending.append(None if fault else output)
        if fault is not None and mark.fault is None:
            mark.fault = [fault.code, fault.message]
        if len(mark.pending) < parts:
            return
        self._add_line(custom_id, form)
        mark.pending, mark.fault = [], None

    def _add_line(self, custom_id: str, form: list[Any]) -> None:
        mark, line_id = self._mark, _line_id(self._spec, custom_id)
        line: dict[str, Any] = {"id": line_id, "custom_id": custom_id, "response": None, "error": None}
        fault = mark.fault
        if fault is None:
            try:
                body = self._body(form, mark.pending)
                line["response"] = {"status_code": 200, "request_id": line_id, "body": body}
            except (BadParameter, NoEmbedding) as error:
                fault = [error.kind, error.message]
        if fault is None:
            mark.completed += 1
        else:
            line["error"] = {"code": _CODES.get(fault[0], fault[0]), "message": fault[1]}
            if fault[0] in _CODES:
                mark.not_reached += 1
            else:
                mark.failed += 1
        self._write_line(line, good=fault is None)

    def _write_line(self, line: dict[str, Any], *, good: bool) -> None:
        text, mark = _encoder.encode(line) + b"\n", self._mark
        self._lines[0 if good else 1].append(text)
        if good:
            mark.output_bytes += len(text)
        else:
            mark.error_bytes += len(text)

    def _body(self, form: list[Any], outputs: list[Any]) -> Any:
        if not form:
            return _plain(outputs[0])
        encoding, dimensions, tokens = form
        request = EmbeddingRequest(self._spec.model, (), base64=encoding == _BASE64, dimensions=dimensions)
        body = answer_of(request, [vector_of(output, self._spec.model) for output in outputs])
        body["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
        return body

    def _open_files(self) -> dict[Path, FileIO]:
        for path in (self._output, self._errors):
            if path not in self._files:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(_beside(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._files[path] = FileIO(descriptor, "r+b")
        return self._files


# OpenAI's names for the codes of rows that a run did not reach.
_CODES = {"expired": "batch_expired", "cancelled": "batch_cancelled"}


def _plain(output: Any) -> Any:
    """A JSON value for any output; bytes become an object with their base64."""
    return {"x_base64": base64.b64encode(output).decode("ascii")} if isinstance(output, bytes) else output


def _line_id(spec: RunSpec, custom_id: str) -> str:
    """The id of an output line; the same if the line is written again."""
    text = f"{Path(spec.output).parent.name}\0{custom_id}".encode("utf-8", "surrogatepass")
    return f"batch_req_{hashlib.blake2b(text, digest_size=12).hexdigest()}"


def _write(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _unpublish(path: Path) -> None:
    """Take back a file that a driver published before it died, and before the store learned that the run had ended."""
    if path.exists() and path.stat().st_size and not _beside(path).exists():
        path.replace(_beside(path))


def _publish_file(file: FileIO, path: Path) -> dict[str, Any] | None:
    """Put a file in place; an empty one is removed, and its report is None."""
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
