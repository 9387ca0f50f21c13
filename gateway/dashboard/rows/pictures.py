"""The size of an image in pixels, from its first bytes, so that no page shows one that fills the viewer's memory. Pure."""

from __future__ import annotations

import struct

STARTS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
IMAGES = frozenset(STARTS)
Size = tuple[int, int]


def image_type(head: bytes) -> str:
    """The media type of an image by its first bytes; empty for everything else."""
    media_type = next((media for media, starts in STARTS.items() if head.startswith(starts)), "")
    return "" if media_type == "image/webp" and head[8:12] != b"WEBP" else media_type


def image_size(media: str, head: bytes) -> Size | None:
    """Width and height; None if the bytes are not an image of this type, or too few to contain its size."""
    if image_type(head) != media:
        return None
    read = {"image/png": _png_size, "image/jpeg": _jpeg_size, "image/gif": _gif_size, "image/webp": _webp_size}[media]
    try:
        return read(head)
    except (struct.error, IndexError):
        return None


def _png_size(data: bytes) -> Size | None:
    if data[12:16] != b"IHDR":
        return None
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _jpeg_size(data: bytes) -> Size | None:
    """Width and height from the frame's header."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _gif_size(data: bytes) -> Size | None:
    """The size of the screen, or of the first picture if it is larger: some browsers then enlarge the screen."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + _colors(flags)
    while data[at] == 0x21:
        at = _behind_blocks(data, at + 2)
    if data[at] != 0x2C:
        return None
    left, top, own_width, own_height = struct.unpack_from("<HHHH", data, at + 1)
    return max(width, left + own_width), max(height, top + own_height)


def _colors(flags: int) -> int:
    """The length of a color table in bytes."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _behind_blocks(data: bytes, at: int) -> int:
    while data[at]:
        at += 1 + data[at]
    return at + 1


def _webp_size(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L" and data[20:21] == b"\x2f":
        [bits] = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return None
