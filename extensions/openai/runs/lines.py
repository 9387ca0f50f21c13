"""The lines of an OpenAI batch: reads one, or checks all of a file and reports every fault with its line number."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from penstock.errors import BadParameter, InvalidInput
from penstock.extensions.openai.embedding import EmbeddingRequest, read_request
from penstock.run import RunSpec

EMBEDDINGS = "/v1/embeddings"
MAX_LINES = 50_000
# A key of a run's metadata: the most lines that its owner is allowed.
LINES_ALLOWED = "penstock:max_lines"
MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_CUSTOM_ID = 512
# A file can be wrong in every line; the first faults show how.
MAX_FAULTS = 100
_decoder = msgspec.json.Decoder()


class InvalidBatch(InvalidInput):
    """`errors` holds `{"code", "line", "message", "param"}` per fault, the first hundred; lines count from 1."""

    kind: ClassVar[str] = "invalid_batch"


class LineFault(Exception):
    """The reason why one line cannot be run."""

    def __init__(self, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of the file. `embedding`: the request, if the line is for the embeddings endpoint."""

    custom_id: str
    body: Any
    embedding: EmbeddingRequest | None = None

    @property
    def inputs(self) -> list[Any]:
        """The model's inputs: one value, or for embeddings each input of the request."""
        return [self.body] if self.embedding is None else list(self.embedding.inputs)


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The size of a valid file: its lines, and the rows that they make."""

    lines: int
    rows: int


def check_file(path: Path, spec: RunSpec) -> BatchSize:
    """Check a whole file. Raises `InvalidBatch` with its faults. Memory: a 16-byte digest in a set per custom_id."""
    faults: list[dict[str, Any]] = []
    seen: set[bytes] = set()
    lines, rows, max_lines = 0, 0, int(spec.metadata.get(LINES_ALLOWED, MAX_LINES))
    for text in raw_lines(path):
        lines += 1
        if lines > max_lines:
            faults = [_fault_report(LineFault("too_many_lines", f"the file has more than {max_lines} lines"), lines)]
            break
        try:
            line = read_line(text, spec)
            _check_id(line.custom_id, seen)
            rows += len(line.inputs)
        except LineFault as fault:
            if len(faults) < MAX_FAULTS:
                faults.append(_fault_report(fault, lines))
    if not lines:
        faults = [_fault_report(LineFault("empty_file", "the file has no lines"), None)]
    if faults:
        raise InvalidBatch(f"the batch cannot run: line {faults[0]['line']}: {faults[0]['message']}", errors=faults)
    return BatchSize(lines, rows)


def raw_lines(path: Path, *, offset: int = 0) -> Iterator[bytes]:
    """The lines from a byte offset on, each cut just behind the limit; an empty last line does not count."""
    with path.open("rb") as file:
        file.seek(offset)
        while line := file.readline(MAX_LINE_BYTES + 1):
            yield line


def read_line(text: bytes, spec: RunSpec) -> BatchLine:
    """Raises `LineFault`."""
    value = _object(text)
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise LineFault("invalid_custom_id", f"custom_id must be 1 to {MAX_CUSTOM_ID} characters", param="custom_id")
    if value.get("method") != "POST":
        raise LineFault("invalid_method", "method must be POST", param="method")
    if value.get("url") != spec.endpoint:
        raise LineFault("mismatched_url", f"url must be the batch's endpoint, {spec.endpoint}", param="url")
    if "body" not in value:
        raise LineFault("missing_body", "the line has no body", param="body")
    return BatchLine(custom_id, body, _embedding(body, spec) if spec.endpoint == EMBEDDINGS else None)


def _object(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_LINE_BYTES:
        raise LineFault("line_too_long", f"the line has more than {MAX_LINE_BYTES} bytes")
    try:
        value = _decoder.decode(text)
    except UnicodeDecodeError as fault:
        raise LineFault("invalid_json_line", f"the line is not UTF-8: {fault.reason} at byte {fault.start}") from None
    except msgspec.DecodeError as fault:
        raise LineFault("invalid_json_line", f"the line is not JSON: {fault}") from None
    except RecursionError:
        raise LineFault("invalid_json_line", "the JSON is nested too deeply") from None
    if not isinstance(value, dict):
        raise LineFault("invalid_json_line", "a line must be an object with custom_id, method, url and body")
    return value


def _embedding(body: Any, spec: RunSpec) -> EmbeddingRequest:
    try:
        request = read_request(body)
    except BadParameter as fault:
        raise LineFault("invalid_body", fault.message, param=f"body.{fault.param}") from None
    if spec.model and request.model != spec.model:
        raise LineFault("mismatched_model", "every line of a batch must name the same model", param="body.model")
    return request


def _check_id(custom_id: str, seen: set[bytes]) -> None:
    mark = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if mark in seen:
        raise LineFault("duplicate_custom_id", f"custom_id {custom_id[:80]!r} is used by an earlier line", param="custom_id")
    seen.add(mark)


def _fault_report(fault: LineFault, line: int | None) -> dict[str, Any]:
    return {"code": fault.code, "line": line, "message": fault.message, "param": fault.param}
