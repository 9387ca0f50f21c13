"""The body of POST /v1/batches and its checks, and the model that the first line of the input names."""

from __future__ import annotations

from pathlib import Path

import orjson
from msgspec import Struct

from penstock.errors import BadParameter
from penstock.gateway.asgi.negotiation import parse_duration
from penstock.gateway.runs.request import LONGEST_WINDOW_S, RESERVED

# Names in the metadata of a run. Callers cannot set or see them.
WINDOW = RESERVED + "window"
MAX_LINES = RESERVED + "max_lines"
# A longer first line is not searched for its model; the run's own check of the file refuses it.
_FIRST_LINE_BYTES = 4 * 1024 * 1024
_SHORTEST_TTL_S, _LONGEST_TTL_S = 3_600, 2_592_000


# The members that the fingerprint of a request always has, also once there are more.
FIRST_MEMBERS = "input_file_id endpoint completion_window output_expires_after webhook webhook_events"


class ExpiresAfter(Struct, forbid_unknown_fields=True):
    anchor: str
    seconds: int


class BatchRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/batches. `webhook` and `webhook_events` are ours: OpenAI's clients send them as `extra_body`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None
    webhook: str = ""
    webhook_events: list[str] = []


def window_s(text: str) -> float:
    """The seconds of `90s`, `10m`, `24h`, `7d`, or of several such parts in a row."""
    total = parse_duration(text)
    if total is None or not 0.0 < total <= LONGEST_WINDOW_S:
        raise BadParameter(
            f"completion_window {text[:40]!r} is not a duration from 1s to 30d; write it like 24h or 10m",
            param="completion_window",
        )
    return total


def output_ttl_s(request: BatchRequest) -> float | None:
    """How long the output files are kept; None if the request does not say."""
    expiry = request.output_expires_after
    if expiry is None:
        return None
    if expiry.anchor != "created_at" or not _SHORTEST_TTL_S <= expiry.seconds <= _LONGEST_TTL_S:
        raise BadParameter(
            f"output_expires_after takes the anchor created_at and {_SHORTEST_TTL_S} to {_LONGEST_TTL_S} seconds",
            param="output_expires_after",
        )
    return float(expiry.seconds)


def first_model(path: Path) -> str:
    """The model that the file's first line names. Empty if it names none; the run's own check of the file refuses that."""
    with path.open("rb") as file:
        line = file.readline(_FIRST_LINE_BYTES)
    try:
        model = orjson.loads(line)["body"]["model"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""
    return model if isinstance(model, str) and len(model) <= 64 else ""
