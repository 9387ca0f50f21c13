"""The options of a task: one Struct per task, whose fields are all the options there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from penstock.errors import HandlerContractError, HandlerLoadError
from penstock.handlers.runtimes.torch.checks import OPTIONS
from penstock.handlers.schema import pointer_of

# What a runtime reads of the same table, for files that do not say it themselves (docs/runtimes.md).
FILE_OPTIONS = frozenset(name for names in OPTIONS.values() for name in names)


class TaskOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`input` and `output` name the model's own where it has several; empty: the only or the usual one."""

    input: str = ""
    output: str = ""


T = TypeVar("T")
Options = TypeVar("Options", bound=TaskOptions)


def read_options(defaults: Options, given: Mapping[str, Any], *, task: str) -> Options:
    """`defaults` with what is `given` in their place; raises `HandlerLoadError` naming the options there are."""
    known = [field.name for field in msgspec.structs.fields(defaults)]
    own = {name: value for name, value in given.items() if name not in FILE_OPTIONS}
    unknown = [name for name in own if name not in known]
    if unknown:
        raise HandlerLoadError(f"{task} has no option {unknown[0]!r}; its options are {', '.join(sorted(known))}")
    try:
        return msgspec.convert({**msgspec.structs.asdict(defaults), **own}, type(defaults))
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `")
        name = pointer_of(path.rstrip("`")).strip("/").replace("/", ".")
        # What a Struct checks of itself has no path: its words name the option.
        where = f"option {name} of {task}" if name else task
        choices = _choices(get_type_hints(type(defaults))[name.partition(".")[0]]) if "enum value" in what else []
        raise HandlerLoadError(f"{where}: {what}" + (f"; it takes {', '.join(choices)}" if choices else "")) from error


def _choices(hint: Any) -> list[str]:
    """The words that an option of this type takes."""
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    if hint is bool:
        return ["true", "false"]
    return [word for part in get_args(hint) for word in _choices(part)]


def check_output(names: Sequence[str], wish: str) -> None:
    """Raises `HandlerLoadError` for an output that is not there. No names: the runtime learns them from the first call."""
    if wish and names and wish not in names:
        raise HandlerLoadError(f"the model has no output {wish!r}; it has {', '.join(names)}")


def output_of(outputs: Mapping[str, T], wish: str, usual: str = "") -> T:
    """The output wished for, else the one with the usual name, else the first; raises `HandlerContractError`."""
    if not wish:
        return outputs[usual] if usual in outputs else next(iter(outputs.values()))
    if wish not in outputs:
        raise HandlerContractError(f"the model has no output {wish!r}; it has {', '.join(outputs)}")
    return outputs[wish]
