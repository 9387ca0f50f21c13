"""What a handler says of the response beside its output: status, reason phrase, headers. Stored with the media type. Pure."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.errors import InternalError
from penstock.outputs.media import HEAD_MARK

MOST_HEADERS = 64
MOST_HEAD_BYTES = 4_096
_PHRASE_CHARS = 200
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
# Printable text of latin-1, with spaces and tabs within it: nothing that could end a line.
_VALUE = re.compile(r"[\t -~\xa0-\xff]*")
# They describe the connection and the body that the gateway sends, so the gateway alone sets them.
_CONNECTION = frozenset(
    [
        "connection",
        "content-length",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "date",
        "server",
    ]
)
# Statuses whose responses end with their head: a client would take a body for the beginning of the next response.
BODILESS = frozenset({204, 205, 304})
# Headers with these beginnings are penstock's own, and so are those below. What browsers obey would speak for the whole origin,
# on which the dashboard lies too; which pages may call is a setting of the gateway.
_OWN_PREFIXES = ("x-penstock-", "access-control-")
_OWN = frozenset(
    [
        "content-type",
        "content-disposition",
        "x-request-id",
        "x-handler-status",
        "set-cookie",
        "content-security-policy",
        "x-content-type-options",
        "strict-transport-security",
        "clear-site-data",
        "service-worker-allowed",
        "alt-svc",
        "nel",
        "report-to",
        "reporting-endpoints",
    ]
)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """`untyped`: the handler named no media type, so a protocol that has such responses sends none.

    Raises `ValueError` for a status, a phrase or headers that no response can have.
    """

    status: int = 200
    phrase: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    untyped: bool = False

    def __post_init__(self) -> None:
        fault = head_fault(self)
        if fault:
            raise ValueError(fault)

    @property
    def is_plain(self) -> bool:
        """Whether it is the head of a usual response."""
        return self == ResponseHead()


def head_fault(head: ResponseHead) -> str:
    """Why no response can begin like this; empty if one can."""
    if not 200 <= head.status <= 599:
        return f"a response has a status from 200 to 599, not {head.status}"
    if len(head.phrase) > _PHRASE_CHARS or not _VALUE.fullmatch(head.phrase):
        return f"a reason phrase is one line of at most {_PHRASE_CHARS} characters of latin-1"
    if len(head.headers) > MOST_HEADERS:
        return f"a response has at most {MOST_HEADERS} headers of its handler, not {len(head.headers)}"
    faults = (header_fault(name, value) for name, value in head.headers.items())
    return next(filter(None, faults), "") or _size_fault(head)


def header_fault(name: str, value: str) -> str:
    """Why a handler cannot set this header; empty if it can."""
    if not _NAME.fullmatch(name):
        return f"{name[:80]!r} is not the name of a header"
    if is_reserved(name):
        return f"the header {name} is set by the gateway"
    return "" if _VALUE.fullmatch(value) else f"the header {name} must be one line of latin-1"


def is_reserved(name: str) -> bool:
    """Whether only the gateway sets this header."""
    lower = name.lower()
    return lower in _CONNECTION or lower in _OWN or lower.startswith(_OWN_PREFIXES)


def _size_fault(head: ResponseHead) -> str:
    size = sum(len(name) + len(value) for name, value in head.headers.items())
    return f"the headers have {size} bytes; {MOST_HEAD_BYTES} is the limit" if size > MOST_HEAD_BYTES else ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, str, dict[str, str], bool])


def with_head(stored_type: str, head: ResponseHead) -> str:
    """The stored media type together with the head; the type itself if the head says nothing."""
    if head.is_plain:
        return stored_type
    packed = _encoder.encode((head.status, head.phrase, dict(head.headers), head.untyped))
    return f"{stored_type}{HEAD_MARK}{urlsafe_b64encode(packed).rstrip(b'=').decode()}"


def split_head(stored_type: str) -> tuple[str, ResponseHead | None]:
    """The media type, with the file's name if it has one, and the head that `with_head` joined to it; None without one.

    Raises `InternalError` for a head that `with_head` did not write.
    """
    media, mark, text = stored_type.partition(HEAD_MARK)
    if not mark:
        return media, None
    try:
        packed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return media, ResponseHead(*_decoder.decode(packed))
    except (ValueError, msgspec.MsgspecError) as error:
        raise InternalError(f"the response head stored with {media[:80]!r} cannot be read: {error}") from error


# The code of a job whose handler raised a `PredictionException`: its message ends with the HTTP status that it asked for.
PREDICTION_EXCEPTION = "prediction_exception"
_STATUS_MARK = " : "
# A failure's message is cut after 1,000 characters.
_MESSAGE_CHARS = 990


def prediction_message(message: str, status: int) -> str:
    """The message of a job that failed with `PREDICTION_EXCEPTION`. Statuses that are no errors count as 500."""
    return f"{message[:_MESSAGE_CHARS]}{_STATUS_MARK}{status if 400 <= status <= 599 else 500}"


def split_prediction_message(message: str) -> tuple[str, int]:
    """The message and the status that `prediction_message` joined; 500 if there is none."""
    text, mark, status = message.rpartition(_STATUS_MARK)
    return (text, int(status)) if mark and status.isascii() and status.isdigit() and len(status) == 3 else (message, 500)
