"""TorchServe's handler contract: `handle` gets a batch of rows, whose `body` is the decoded JSON."""

from __future__ import annotations

import launch

_loaded = []


def handle(data, context):
    if not _loaded:
        _loaded.append(launch.load_function())
    return _loaded[0]([row["body"] for row in data]) if data else None
