"""Exit codes, and the text of an error: what happened, why, what to do next.

`--help` shows them, and docs/production/troubleshooting.md explains them.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from penstock.cli.completion import completed
from penstock.distribution import explained
from penstock.errors import PenstockError, is_disk_full

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

# docs/production/troubleshooting.md has a heading for each.
MEANINGS = {
    OK: "ok",
    FAILED: "the job or a check failed, or the disk is full",
    USAGE: "wrong usage",
    UNREACHABLE: "no gateway answers",
    CONFIG: "settings or model files are wrong",
    REFUSED: "the gateway refused the request",
    LATER: "not yet, try again later",
    NOT_STARTED: "could not start",
    BUG: "a bug",
    INTERRUPTED: "interrupted",
}
HELP = f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in MEANINGS.items())}."

# By class name, so that reporting an error imports none of the modules that define these classes.
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
    """`penstock up` lacks something that it needs: the port, the state folder, a process that keeps running."""

    kind = "start_failed"


def code_of(error: BaseException) -> int:
    """The exit code of an error's nearest known base class."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if not isinstance(error, PenstockError) and is_disk_full(error):
        return FAILED
    return next((_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _CODES), BUG)


def message_of(error: BaseException) -> str:
    """What happened and why; if the error has a hint, the next step on a second line."""
    if not isinstance(error, PenstockError) and is_disk_full(error):
        where = getattr(error, "filename", None)
        return f"the disk is full{f': {where} cannot be written' if where else ''}\n  next: free some space, and run it again"
    if not isinstance(error, PenstockError):
        what = f"{type(error).__name__}: {error}; this is a bug"
        return f"{what}\n  next: run it again with PENSTOCK_DEBUG=1 and report the output"
    hint = error.hint or ""
    if not hint:
        return completed(error.message)
    # The client's messages end with their hint, which is shown here on a line of its own.
    text = error.message.partition(hint)[0].rstrip(" ;")
    return f"{text}\n  next: {completed(hint)}"


def report(error: BaseException, *, as_json: bool) -> int:
    """Print the error on stderr and return the exit code. PENSTOCK_DEBUG=1 adds the traceback."""
    if os.environ.get("PENSTOCK_DEBUG") == "1":
        traceback.print_exception(error)
    error = explained(error)
    code = code_of(error)
    if as_json:
        print(json.dumps({"error": record_of(error), "exit_code": code}), file=sys.stderr)
    else:
        print(f"error: {message_of(error)}", file=sys.stderr)
    return code


def record_of(error: BaseException) -> dict[str, Any]:
    """The error for programs; a problem body of the gateway is passed on unchanged."""
    if code_of(error) == USAGE:
        return {"code": "usage", "detail": _usage(error), "hint": "penstock COMMAND --help lists every option"}
    if not isinstance(error, PenstockError):
        if is_disk_full(error):
            return {"code": "disk_full", "detail": str(error), "hint": "free some space, and run it again"}
        return {"code": "bug", "detail": f"{type(error).__name__}: {error}"}
    problem = getattr(error, "problem", None)
    body = dict(problem.body) if problem is not None else {}
    own = {
        "code": error.kind,
        "detail": error.message,
        "hint": completed(error.hint) if error.hint else None,
        "retryable": error.retryable,
    }
    return {**{name: value for name, value in own.items() if value is not None}, **body}


def _usage(error: BaseException) -> str:
    """Typer's message, which names the option or argument."""
    return str(getattr(error, "format_message", error.__str__)())
