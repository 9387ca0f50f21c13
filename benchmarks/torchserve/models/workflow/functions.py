"""The nodes of the workflows that are functions."""

import json


def clean(data, context):
    """Looks at the first row alone, as most functions do."""
    if data is None:
        return None
    body = data[0].get("data") or data[0].get("body")
    if isinstance(body, (bytes, bytearray)):
        body = json.loads(body)
    return [{"n": int(body["n"])}]


def frame(data, context):
    if data is None:
        return None
    assert all(isinstance(row["body"], (bytes, bytearray)) for row in data)
    return [{"framed": json.loads(row["body"])} for row in data]


def both(data, context):
    if data is None:
        return None
    return [{name: json.loads(row[name]) for name in ("double", "negate")} for row in data]
