"""What a request of TorchServe's routes is made of: what its handler finds as headers, fields in the query, a model's name."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

from msgspec import structs

from penstock.errors import BadRequest
from penstock.extension import submit_parameters
from penstock.extensions.torchserve.gateway.routes import TorchServeTarget
from penstock.extensions.torchserve.urlencoded import URLENCODED, pairs_of
from penstock.gateway.asgi import multipart
from penstock.gateway.asgi.negotiation import MULTIPART, base_type
from penstock.gateway.asgi.wire import Receive
from penstock.gateway.jobs.submitting.draft import Draft, RawHeaders, SettledDraft
from penstock.gateway.jobs.submitting.form_input import MOST_RAW_PARTS
from penstock.gateway.jobs.submitting.submit_options import NAMES
from penstock.inputs.form import FormPart
from penstock.job import Call

# The field of TorchServe's row that holds a body other than a form.
BODY = "body"
MODEL_NAME = "model_name"
_OURS = frozenset({b"explain", b"url_path", b"describe", b"x-request-id"})


def handler_headers(headers: RawHeaders, target: TorchServeTarget, request_id: bytes) -> list[tuple[bytes, bytes]]:
    """The request's own headers and those that TorchServe adds; what the caller sent under their names is left out."""
    kept = [header for header in headers if header[0] not in _OURS]
    kept.append((b"x-request-id", request_id))
    if target.explain is not None:
        kept.append((b"explain", target.explain.encode("ascii")))
    if target.url_path is not None:
        kept.append((b"url_path", target.url_path.encode("latin-1", "replace")))
    return kept


def of_version(draft: Draft, settled: SettledDraft, target: TorchServeTarget, request_id: bytes) -> Draft:
    """The draft once its version is known: a handler of TorchServe's reads from its headers what else the request asks for."""
    takes_raw = settled.version.takes_raw
    is_explained = target.explain == "True" and not takes_raw
    return structs.replace(
        draft,
        settled=settled,
        kind="explanations" if is_explained else f"{target.route} {target.url_path or ''}",
        call=Call.EXPLAIN if is_explained else Call.PREDICT,
        headers=handler_headers(draft.headers, target, request_id) if takes_raw else draft.headers,
    )


def own_options(query: bytes, of_model: Sequence[str]) -> bytes:
    """The query without the parameters that are neither penstock's nor the model's: TorchServe ignores all of them, also those
    that cannot be read.
    """
    known = (*NAMES, *submit_parameters(), *of_model)
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="replace")
    return urlencode({name: value for name, value in pairs if name in known}).encode("ascii")


def query_fields(query: bytes) -> list[FormPart]:
    """The parameters of a query, or of a body of that form, as fields in their order. Raises `BadRequest`."""
    try:
        return [FormPart(name, value) for name, value in pairs_of(query, MOST_RAW_PARTS)]
    except ValueError as error:
        raise BadRequest(f"the fields cannot be read; write name=value pairs joined by &, at most {MOST_RAW_PARTS}") from error


def with_fields(fields: Sequence[FormPart], body: bytes, content_type: str) -> list[FormPart]:
    """The fields, and behind them the body: the parts of a form, or else one part that keeps its media type."""
    parts = form_fields_of(body, content_type)
    # A part with the name of a file, even an empty one, is read by its media type.
    return [*fields, *(parts or [FormPart(BODY, body, content_type, "")])]


def model_name_in(fields: Sequence[FormPart]) -> str:
    """The model that a field names; empty if none does."""
    names = [part.data for part in fields if part.name == MODEL_NAME]
    return names[-1].decode("utf-8", "replace") if names else ""


def form_fields_of(body: bytes, content_type: str) -> list[FormPart]:
    """The fields of a body that is a form; none of any other body."""
    base = base_type(content_type)
    if base == MULTIPART:
        return multipart.multipart_parts(body, content_type, most=MOST_RAW_PARTS)
    return query_fields(body) if base == URLENCODED else []


def read_again(body: bytes) -> Receive:
    """A body that was read already, to be read again."""

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
