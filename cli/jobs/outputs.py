"""A model's output on the command line: shown, written to stdout unchanged, or saved as a file."""

from __future__ import annotations

import base64
import json
import mimetypes
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import BadRequest
from penstock.outputs.media import BytesLike, Media

OutputFileOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the output to this file; into a folder, under the name that the model gave it."),
]


def readable(output: Any) -> str:
    """The output for people: compact JSON or text; other bytes and files as their size."""
    data = _bytes_of(output)
    if data is None:
        return json.dumps(output, ensure_ascii=False, default=_in_words)
    with suppress(UnicodeDecodeError):
        text = data.decode()
        if text.isprintable() or "\n" in text:
            return text
    kind = f" of {output.content_type}" if isinstance(output, Media) else ""
    return f"{len(data)} bytes{kind}; write them to a file with -o FILE"


def write_raw(output: Any) -> None:
    sys.stdout.buffer.write(_content(output))
    sys.stdout.buffer.flush()


def json_members(output: Any) -> dict[str, Any]:
    """The output as members of a line of JSON."""
    if isinstance(output, bytes):
        return {"output_base64": _base64(output)}
    if isinstance(output, Media):
        return {"output_base64": _base64(output.data), "content_type": output.content_type, "filename": output.filename}
    return {"output": json.loads(json.dumps(output, default=_in_base64))}


def save(output: Any, path: Path, job: str) -> Path:
    """Save the output; returns the file, or the folder with its files.

    In a folder each file is new, under its own name, or else under the job's id. The model chose that name, so existing
    files are never overwritten. Raises `BadRequest`.
    """
    if not path.is_dir():
        _write(path, "wb", _content(output), job)
        return path
    files: dict[str, bytes] = {}
    whole = _bytes_of(output)
    if whole is None:
        content = _content(output, lambda file: _kept(files, file, f"{job}-{len(files)}"))
        files[f"{job}.json"] = content
    else:
        _kept(files, output, job)
    for name, content in files.items():
        _write(path / name, "xb", content, job)
    return path / next(iter(files)) if len(files) == 1 else path


def _kept(files: dict[str, bytes], file: Any, job: str) -> str:
    """Add the file to `files`; returns its name there."""
    if isinstance(file, bytes):
        name = f"{job}.bin"
    else:
        name = file.filename or f"{job}{mimetypes.guess_extension(file.content_type.partition(';')[0]) or ''}"
    name = name if name not in files else f"{job}-{name}"
    files[name] = bytes(file.data) if isinstance(file, Media) else file
    return name


def _write(file: Path, mode: str, content: bytes, job: str) -> None:
    hint = f"the output is kept; write it elsewhere: penstock jobs result {job} -o FILE"
    try:
        with file.open(mode) as target:
            target.write(content)
    except FileExistsError:
        raise BadRequest(f"{file} exists already", hint=hint) from None
    except OSError as fault:
        raise BadRequest(f"{file} cannot be written: {fault.strerror}", hint=hint) from fault


def _content(output: Any, written: Callable[[Any], Any] | None = None) -> bytes:
    """The bytes of an output: a text as such, any other value as JSON, with `written` in place of a file."""
    data = _bytes_of(output)
    if data is not None:
        return data
    if isinstance(output, str):
        return output.encode()
    return json.dumps(output, ensure_ascii=False, default=written or _in_base64).encode()


def _bytes_of(output: Any) -> bytes | None:
    return bytes(output.data) if isinstance(output, Media) else output if isinstance(output, bytes) else None


def _in_words(file: Media) -> dict[str, Any]:
    name = {"filename": file.filename} if file.filename is not None else {}
    return {"content_type": file.content_type, **name, "bytes": len(file.data)}


def _in_base64(file: Media) -> dict[str, Any]:
    return {"base64": _base64(file.data), "content_type": file.content_type, "filename": file.filename}


def _base64(data: BytesLike) -> str:
    return base64.b64encode(data).decode()
