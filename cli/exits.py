"""Exit codes, and how an error is told: what, why, the next command. The table stands in docs/cli.md and in `--help`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from penstock.errors import PenstockError

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
CONFIG = 4
REFUSED = 5
LATER = 6
NOT_STARTED = 7
BUG = 70
INTERRUPTED = 130

HELP = (
    "Exit codes: 0 ok; 1 the job or a check failed; 2 wrong usage; 3 no gateway answers; 4 settings or model files are wrong; "
    "5 the gateway refused the request; 6 not yet, try again later; 7 could not start; 70 a bug; 130 interrupted."
)

# By kind and by the names of base classes, so that telling an error loads nothing that raised it.
_CODES = {
    "UsageError": USAGE,
    "JobEnded": FAILED,
    "GatewayUnreachable": UNREACHABLE,
    "UnexpectedAnswer": UNREACHABLE,
    "ConfigError": CONFIG,
    "StartError": NOT_STARTED,
    "WaitTimeout": LATER,
    "CapacityError": LATER,
    "CallerError": REFUSED,
    "HandlerError": FAILED,
}


class StartError(PenstockError):
    """Something that `penstock up` needs is not to be had: the port, the state folder, a process that stays up."""

    kind = "start_failed"


def code_of(error: BaseException) -> int:
    """The exit code for an error: that of its nearest known class."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return next((_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _CODES), BUG)


def message_of(error: BaseException) -> str:
    """One text: what and why, then the next step on a line of its own unless the message says it already."""
    if not isinstance(error, PenstockError):
        what = f"{type(error).__name__}: {error}; this is a bug"
        return f"{what}\n  next: run it again with PENSTOCK_DEBUG=1 and report what it prints"
    hint = error.hint or ""
    if not hint:
        return error.message
    # The client's messages end with their hint; here it gets a line of its own.
    text = error.message.partition(hint)[0].rstrip(" ;")
    return f"{text}\n  next: {hint}"


def report(error: BaseException, *, as_json: bool) -> int:
    """Tells the error on stderr and returns the exit code. The traceback only under PENSTOCK_DEBUG=1."""
    if os.environ.get("PENSTOCK_DEBUG") == "1":
        traceback.print_exception(error)
    code = code_of(error)
    if as_json:
        print(json.dumps({"error": record_of(error), "exit_code": code}), file=sys.stderr)
    else:
        print(f"error: {message_of(error)}", file=sys.stderr)
    return code


def record_of(error: BaseException) -> dict[str, Any]:
    """The error as programs read it; a problem body of the gateway as it came."""
    if code_of(error) == USAGE:
        return {"code": "usage", "detail": _usage(error), "hint": "penstock COMMAND --help tells every option"}
    if not isinstance(error, PenstockError):
        return {"code": "bug", "detail": f"{type(error).__name__}: {error}"}
    problem = getattr(error, "problem", None)
    body = dict(problem.body) if problem is not None else {}
    own = {"code": error.kind, "detail": error.message, "hint": error.hint, "retryable": error.retryable}
    return {**{name: value for name, value in own.items() if value is not None}, **body}


def _usage(error: BaseException) -> str:
    """Typer's sentence on wrong usage, which names the option or argument."""
    return str(getattr(error, "format_message", error.__str__)())
