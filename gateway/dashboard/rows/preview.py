"""Previews of payloads: bounded, and safe for any bytes of a caller. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace

import orjson

from penstock.errors import InternalError, InvalidInput
from penstock.gateway.asgi.negotiation import OCTETS, base_type
from penstock.gateway.dashboard.rows.arrays import ShownArray, arrays_of
from penstock.gateway.dashboard.rows.pictures import IMAGES, image_size, image_type
from penstock.gateway.dashboard.rows.trees import ShownTable, TreeNode, table_of, tree_of
from penstock.inputs.form import FormPart, decode_form
from penstock.inputs.request import decode_request
from penstock.job import PACKED_MEDIA, REQUEST_MEDIA, TENSORS_MEDIA
from penstock.outputs.bundle import BUNDLE_MEDIA, HEAD_LENGTH_BYTES, decode_head, head_length

TEXT_BYTES = 4 * 1024
# The bytes read for a preview. Only a complete image is shown, and only complete JSON is indented.
PREVIEW_BYTES = 96 * 1024
# Larger images and audio are loaded from a separate address, which serves only these types.
SHOWN_BYTES = 16 * 1024 * 1024
AUDIO = frozenset({"audio/wav", "audio/x-wav", "audio/mpeg", "audio/ogg", "audio/flac"})
SHOWN_TYPES = AUDIO | IMAGES
_HEX_BYTES = 128
# A few kilobytes may unpack into gigabytes of pixels in the viewer's browser.
_MAX_PIXELS = 4_000_000
_TEXTS = ("text/", "application/xml", "application/x-ndjson", "application/javascript")
_WHITESPACE = {"\n", "\t"}


@dataclass(frozen=True, slots=True)
class Preview:
    """`kind` is text, hex, image, audio, arrays or none. `note` says what is missing. `image` is a data URI; larger images and
    audio come from a separate address. `files`: those of a bundle. `table`, `tree`: JSON that reads better this way.
    """

    kind: str
    text: str = ""
    note: str = ""
    image: str = ""
    files: int = 0
    table: ShownTable | None = None
    tree: TreeNode | None = None
    arrays: tuple[ShownArray, ...] = ()


def preview(content_type: str, head: bytes, size: int) -> Preview:
    """`head` is the payload, cut at `PREVIEW_BYTES`; `size` is the size of the whole."""
    base = base_type(content_type)
    if not size:
        return Preview("none", note="empty")
    if base in PACKED_MEDIA:
        return _packed(base, head, size)
    if base == OCTETS and len(head) == size:
        # Handlers that return bytes name no media type, and mostly return images. The address for larger ones uses
        # only the media type.
        base = image_type(head) or base
    if base in SHOWN_TYPES:
        return _media(base, head, size)
    if base == BUNDLE_MEDIA:
        return _bundle(head)
    if base == "application/json" or base.endswith("+json"):
        return _json(head, size)
    if base.startswith(_TEXTS):
        return _text(head, size)
    return _hex(head, size)


def _packed(base: str, head: bytes, size: int) -> Preview:
    """The packed content: an input, arrays, or one line per part of a form."""
    if len(head) < size and base != TENSORS_MEDIA:
        return Preview("none", note="too large for a preview")
    try:
        if base == TENSORS_MEDIA:
            return Preview("arrays", arrays=arrays_of(head))
        if base == REQUEST_MEDIA:
            said = decode_request(head)
            return preview(said.content_type, said.data, len(said.data))
        return _text("\n".join(map(_part, decode_form(head))).encode(), None)
    except InvalidInput as error:
        return Preview("none", note=error.message)


def _part(part: FormPart) -> str:
    if part.is_file:
        return f"{part.name}: file {part.filename!r}, {part.content_type or OCTETS}, {len(part.data)} bytes"
    return f"{part.name}: {part.data[:TEXT_BYTES].decode('utf-8', 'replace')}"


def _bundle(head: bytes) -> Preview:
    """The JSON, with a reference in place of each file."""
    try:
        length = head_length(head[:HEAD_LENGTH_BYTES])
        bundle = decode_head(head[HEAD_LENGTH_BYTES:][:length])
    except InternalError:
        # Arbitrary bytes of a caller with this media type, or too many files for the first bytes.
        return Preview("none", note="not shown")
    json = head[slice(*bundle.json)].replace(bundle.token.encode(), b"parts")
    return replace(_json(json, len(json)), files=len(bundle.files))


def _json(head: bytes, size: int) -> Preview:
    if len(head) < size:
        return _text(head, size)
    try:
        value = orjson.loads(head)
    except orjson.JSONDecodeError:
        return _text(head, size)
    text, table = _text(orjson.dumps(value, option=orjson.OPT_INDENT_2), None), table_of(value)
    return replace(text, table=table, tree=None if table else tree_of(value))


def _text(data: bytes, size: int | None) -> Preview:
    shown = data[:TEXT_BYTES].decode("utf-8", "replace")
    clean = "".join(char if char.isprintable() or char in _WHITESPACE else "\ufffd" for char in shown)
    cut = len(data) > TEXT_BYTES or (size or 0) > TEXT_BYTES
    return Preview("text", clean, f"the first {TEXT_BYTES // 1024} KiB" if cut else "")


def _hex(head: bytes, size: int) -> Preview:
    rows = [head[at : at + 16] for at in range(0, min(len(head), _HEX_BYTES), 16)]
    lines = [f"{16 * index:04x}  {row.hex(' '):<47}  {_ascii(row)}" for index, row in enumerate(rows)]
    return Preview("hex", "\n".join(lines), f"the first {_HEX_BYTES} bytes" if size > _HEX_BYTES else "")


def _ascii(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)


def _media(base: str, head: bytes, size: int) -> Preview:
    if size > SHOWN_BYTES:
        return Preview("none", note="too large for a preview")
    return Preview("audio") if base in AUDIO else _image(base, head, size)


def _image(base: str, head: bytes, size: int) -> Preview:
    shape = image_size(base, head)
    if shape is None:
        return Preview("none", note="the content does not match its media type")
    if shape[0] * shape[1] > _MAX_PIXELS:
        return Preview("none", note=f"{shape[0]} x {shape[1]} pixels, too large for a preview")
    if len(head) < size:
        return Preview("image", note=f"{shape[0]} x {shape[1]}")
    data = base64.b64encode(head).decode("ascii")
    return Preview("image", image=f"data:{base};base64,{data}", note=f"{shape[0]} x {shape[1]}")
