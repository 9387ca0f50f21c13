"""The options of a task: one Struct per task, whose fields are all the options there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.errors import HandlerLoadError
from penstock.handlers.schema import pointer_of


class TaskOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`input` and `output` name the model's own where it has several; empty: the only or the usual one."""

    input: str = ""
    output: str = ""


T = TypeVar("T", bound=TaskOptions)


def read_options(defaults: T, given: Mapping[str, Any], *, task: str) -> T:
    """`defaults` with what is `given` in their place; raises `HandlerLoadError` naming the options there are."""
    known = [field.name for field in msgspec.structs.fields(defaults)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise HandlerLoadError(f"{task} has no option {unknown[0]!r}; its options are {', '.join(sorted(known))}")
    try:
        return msgspec.convert({**msgspec.structs.asdict(defaults), **given}, type(defaults))
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `")
        name = pointer_of(path.rstrip("`")).strip("/").replace("/", ".")
        raise HandlerLoadError(f"option {name or '?'} of {task}: {what}") from error


def checked_output(names: Sequence[str], wish: str, usual: str = "") -> str:
    """The output to read: the one wished for, the one with the usual name, or the first; raises `HandlerLoadError`."""
    if not wish:
        return usual if usual in names else names[0]
    if wish not in names:
        raise HandlerLoadError(f"the model has no output {wish!r}; it has {', '.join(names)}")
    return wish
