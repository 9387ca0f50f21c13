"""A model's output on the command line: shown, written to stdout unchanged, or saved as a file."""

from __future__ import annotations

import base64
import json
import mimetypes
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import BadRequest
from penstock.outputs.media import Media

OutputFileOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the output to this file; into a folder, under the name that the model gave it."),
]


def readable(output: Any) -> str:
    """The output as people read it: compact JSON, or text; for other bytes their number."""
    data = _bytes_of(output)
    if data is None:
        return json.dumps(output, ensure_ascii=False)
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
    data = _bytes_of(output)
    if data is None:
        return {"output": output}
    members: dict[str, Any] = {"output_base64": base64.b64encode(data).decode()}
    if isinstance(output, Media):
        members |= {"content_type": output.content_type, "filename": output.filename}
    return members


def save(output: Any, path: Path, job: str) -> Path:
    """The file that now has the output. In a folder it is a new one, under the output's own name, else under the job's id.

    The model chose that name, so no file that is already there is written over. Raises `BadRequest`.
    """
    into_folder = path.is_dir()
    file = path / _name_of(output, job) if into_folder else path
    hint = f"the output is kept; write it elsewhere: penstock jobs result {job} -o FILE"
    try:
        with file.open("xb" if into_folder else "wb") as target:
            target.write(_content(output))
    except FileExistsError:
        raise BadRequest(f"{file} exists already", hint=hint) from None
    except OSError as fault:
        raise BadRequest(f"{file} cannot be written: {fault.strerror}", hint=hint) from fault
    return file


def _name_of(output: Any, job: str) -> str:
    if isinstance(output, Media):
        return output.filename or f"{job}{mimetypes.guess_extension(output.content_type.partition(';')[0]) or ''}"
    return f"{job}.bin" if isinstance(output, bytes) else f"{job}.json"


def _content(output: Any) -> bytes:
    """The bytes of an output; of a text the text itself, of any other value its JSON."""
    data = _bytes_of(output)
    if data is not None:
        return data
    return (output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)).encode()


def _bytes_of(output: Any) -> bytes | None:
    return bytes(output.data) if isinstance(output, Media) else output if isinstance(output, bytes) else None
