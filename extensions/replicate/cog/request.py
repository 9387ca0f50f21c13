"""What a caller of Cog's protocol sends: the body of a prediction and the id that it gives the prediction. Pure."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from penstock.errors import BadRequest, InvalidInput
from penstock.extensions.replicate.gateway.views import COG_TAG
from penstock.gateway.runs.request import read_body
from penstock.job import Job

# A tag has at most 64 characters.
_ID = re.compile(r"[A-Za-z0-9._:=-]{1,60}")


class CogRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a new prediction."""

    input: dict[str, Any] = field(default_factory=dict)
    id: str | None = None
    webhook: str | None = None
    webhook_events_filter: list[str] | None = None
    output_file_prefix: str | None = None


def cog_request(value: Any, named: str = "") -> CogRequest:
    """`named`: the id in the path, which the result gets. Raises `InvalidInput` or `BadRequest` for a wrong body."""
    request = read_body(value, CogRequest)
    if request.output_file_prefix:
        raise InvalidInput(
            "output_file_prefix is not supported by this path",
            errors=[{"pointer": "/output_file_prefix", "detail": "must be left out"}],
            hint="Files stand in the answer as data URLs, or as links.",
        )
    if named and request.id not in (None, named):
        raise InvalidInput(f"the body names the id {request.id[:80]!r}, and the path another one")
    if named:
        request.id = named
    if request.id is not None and not is_prediction_id(request.id):
        raise BadRequest(f"an id has 1 to 60 characters of A-Z a-z 0-9 . _ : = -, and {request.id[:80]!r} is none")
    return request


def is_prediction_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def tag_of(prediction_id: str) -> str:
    return f"{COG_TAG}{prediction_id}"


def key_of(prediction_id: str, before: Job | None) -> str:
    """The idempotency key of a new prediction of this id. `before`: the one that ended without an output, if there was one.

    Callers who repeat an id at the same time get the same job.
    """
    return tag_of(prediction_id) + (f"/{before.id.serial}" if before is not None else "")
