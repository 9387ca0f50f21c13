"""JSON as TorchServe reads and writes it: the results of Python's own library, in a fraction of its time.

A fast library does the common cases. Where its result may differ, Python's own library does the work again.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

# Classes that the fast library would write and Python's own refuses.
_INDENT = orjson.OPT_INDENT_2 | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
# What the fast library may have read differently: whole numbers beyond a machine word, as floats.
_LONG_NUMBER = re.compile(rb"\d{18}")
# What the fast library may have written differently: NaN and infinity as null, exponents in another form or not at all,
# text beyond ASCII as it is. Ordinary answers have none of these.
_DIFFERENT = re.compile(rb"null|\de|0\.0000|[^\x00-\x7f]")


def read_json(data: bytes) -> Any:
    """Raises `ValueError`, and `RecursionError` for what nests too deep."""
    if not _LONG_NUMBER.search(data):
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            # Python's own library takes NaN, lone surrogates and other encodings.
            return json.loads(data)
    return json.loads(data)


def write_json(value: Any, *, allow_nan: bool) -> bytes:
    """With an indent of two. Raises `TypeError`, `ValueError` or `RecursionError` for what JSON cannot hold."""
    try:
        data = orjson.dumps(value, option=_INDENT)
    except TypeError:
        return json.dumps(value, indent=2, allow_nan=allow_nan).encode()
    return json.dumps(value, indent=2, allow_nan=allow_nan).encode() if _DIFFERENT.search(data) else data
