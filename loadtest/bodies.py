"""The bodies of requests: a file, the files of a folder, the lines of a JSONL file, JSON text, or one made from the schema."""

from __future__ import annotations

import json
import math
import mimetypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import BadRequest
from penstock.handlers.example_input import NoExample, example_input
from penstock.loadtest.generator.connection import RequestBody

JSON = "application/json"
_BYTES = "application/octet-stream"
_HINT = "name a file (--body @cat.jpg), a folder, a .jsonl file, or give JSON (--body '{\"x\": 4}')"
# Where the model leaves the size of a dimension open.
_OPEN_SIZE = 1


def read_bodies(text: str) -> list[RequestBody]:
    """The bodies that `--body` names, which calls send in turn. The caller handles `schema`. Raises `BadRequest`."""
    path = Path(text.removeprefix("@"))
    if text.startswith("@"):
        return [_of_file(path)]
    # `path.is_dir()` would raise if the text is JSON and longer than a file name may be.
    if os.path.isdir(path):
        return _of_folder(path)
    if path.suffix in (".jsonl", ".ndjson"):
        return _of_lines(path)
    try:
        json.loads(text)
    except ValueError as fault:
        raise BadRequest(f"--body {text[:40]!r} is neither a folder nor JSON ({fault})", hint=_HINT) from fault
    return [RequestBody(text.encode(), JSON)]


def _of_file(path: Path) -> RequestBody:
    try:
        data = path.read_bytes()
    except OSError as fault:
        raise BadRequest(f"{path} cannot be read: {fault.strerror}", hint=_HINT) from fault
    return RequestBody(data, mimetypes.guess_type(path.name)[0] or _BYTES)


def _of_folder(folder: Path) -> list[RequestBody]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not files:
        raise BadRequest(f"the folder {folder} holds no files to send", hint=_HINT)
    return [_of_file(path) for path in files]


def _of_lines(path: Path) -> list[RequestBody]:
    lines = [line.strip() for line in _of_file(path).data.splitlines()]
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line or b"null")
        except ValueError as fault:
            raise BadRequest(f"line {number} of {path} is not JSON: {fault}", hint="one JSON value per line") from fault
    bodies = [RequestBody(line, JSON) for line in lines if line]
    if not bodies:
        raise BadRequest(f"{path} holds no lines to send", hint=_HINT)
    return bodies


def from_schema(schema: Mapping[str, Any] | None, model: str) -> RequestBody:
    """The smallest input that the model's schema admits. Raises `BadRequest` if the schema is too vague to make one."""
    if not schema:
        raise BadRequest(f"the model {model!r} declares no input schema to make an input from", hint=_HINT)
    try:
        return RequestBody(json.dumps(example_input(schema)).encode(), JSON)
    except NoExample as fault:
        raise BadRequest(f"no input can be made from the schema of {model!r}: {fault}", hint=_HINT) from fault


def from_tensors(inputs: Sequence[Mapping[str, Any]], model: str) -> RequestBody:
    """An inference request of the Open Inference Protocol, filled with zeros (or empty strings) in the declared shapes; a
    dimension of open size (-1) gets size 1."""
    if not inputs:
        raise BadRequest(f"the metadata of {model!r} declares no inputs to fill", hint=_HINT)
    return RequestBody(json.dumps({"inputs": [_tensor(tensor) for tensor in inputs]}).encode(), JSON)


def _tensor(declared: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(declared.get("datatype", "FP32"))
    shape = [int(size) if int(size) > 0 else _OPEN_SIZE for size in declared.get("shape") or [_OPEN_SIZE]]
    zero: Any = "" if kind == "BYTES" else False if kind == "BOOL" else 0.0 if kind.startswith(("FP", "BF")) else 0
    return {"name": declared.get("name", ""), "datatype": kind, "shape": shape, "data": [zero] * math.prod(shape)}
