"""Errors of TorchScript programs without the traceback that torch writes into the message, because callers see messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import HandlerError

_TRACED = "in the TorchScript interpreter."
# The line after the traceback: all lines of the traceback are indented, blank, or name a place in a file.
_RAISED = re.compile(r"^(?:\w+\.)*(\w+):(?: |$)", re.MULTILINE)


def without_traceback(torch: Any, call: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    """The same call with plain errors. torch's own errors keep their class, which tells running out of memory from others."""

    def called(tensors: Sequence[Any]) -> Any:
        try:
            return call(tensors)
        except (RuntimeError, torch.jit.Error) as error:
            name, words = _raised(str(error))
            if not name:
                raise
            if isinstance(error, torch.jit.Error):
                # The model's own `raise`; only the name of the class is known.
                raise HandlerError(f"{name}: {words}" if words else name) from error
            raise type(error)(words) from error

    return called


def _raised(text: str) -> tuple[str, str]:
    """Class and message of the error at the end of a traceback; empty without a traceback. Pure."""
    if _TRACED not in text.partition("\n")[0]:
        return "", ""
    found = list(_RAISED.finditer(text))
    return (found[-1][1], text[found[-1].end() :].strip()) if found else ("", "")
