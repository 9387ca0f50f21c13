"""Forms of the type `application/x-www-form-urlencoded`, in memory that does not grow beyond their own size. Pure.

Python's reader makes an object of each escaped byte: of 32 MiB of them it takes three gigabytes.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

URLENCODED = "application/x-www-form-urlencoded"
# The bytes read at a time: Python frees the objects of one block before the next one is read.
_BLOCK_BYTES = 1 << 16
# The length of an escape, as in %41, without its last digit: a block must not end within one.
_BEGUN = 2


def pairs_of(data: bytes, most: int) -> list[tuple[str, bytes]]:
    """Names and values in their order; names are read as UTF-8.

    Raises `ValueError` for more than `most` pairs, before any is read.
    """
    if data.count(b"&") >= most:
        raise ValueError(f"the form has more than {most} fields")
    cut = [pair.partition(b"=") for pair in data.split(b"&") if pair]
    return [(_plain(name).decode("utf-8", "replace"), _plain(value)) for name, _, value in cut]


def _plain(text: bytes) -> bytes:
    """The bytes that a name or a value stands for. A percent sign without two digits behind it stands for itself."""
    text = text.replace(b"+", b" ")
    if b"%" not in text:
        return text
    plain, start = bytearray(), 0
    while start < len(text):
        end = min(start + _BLOCK_BYTES, len(text))
        begun = text.rfind(b"%", end - _BEGUN, end) if end < len(text) else -1
        end = begun if begun > start else end
        plain += unquote_to_bytes(text[start:end])
        start = end
    return bytes(plain)
