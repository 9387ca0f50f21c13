"""Environment variables of a model: `NAME = "text"`, `NAME = { from = "VAR" }` or `NAME = { file = "path" }`.

No error repeats a value, because it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer, PlainValidator

from penstock.model_spec import Variable
from penstock.words import MASK

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORMS = 'write "text", { from = "VARIABLE" } or { file = "path" }'
# The worker sets these for each child, or reads them as settings of its own.
_OURS = re.compile(
    r"PENSTOCK_.*|REDIS_URL|PYTHONUNBUFFERED|PYTHONFAULTHANDLER|.*_NUM_THREADS|CUDA_DEVICE_ORDER|CUDA_VISIBLE_DEVICES"
)


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("variables are letters, digits and '_', and start with a letter or '_'")
    if _OURS.fullmatch(name):
        raise ValueError("penstock sets this variable itself")
    return name


def _variable(value: Any) -> Variable:
    if isinstance(value, Variable):
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Mapping)):
        raise ValueError(f"{_FORMS}; variables are text")
    if not isinstance(value, Mapping):
        return Variable(text=str(value))
    if len(value) != 1 or not isinstance(next(iter(value.values())), str) or not next(iter(value.values())):
        raise ValueError(_FORMS)
    [(form, name)] = value.items()
    if form not in ("from", "file"):
        raise ValueError(_FORMS)
    return Variable(of=name) if form == "from" else Variable(file=name)


def _shown(variable: Variable) -> Any:
    if variable.of:
        return f"from {variable.of}"
    return f"file {variable.file}" if variable.file else variable.text


def _hidden(variable: Variable) -> Any:
    return MASK if variable.text is not None else _shown(variable)


VariableName = Annotated[str, AfterValidator(_named)]
PlainVariable = Annotated[Variable, PlainValidator(_variable), PlainSerializer(_shown)]
SecretVariable = Annotated[Variable, PlainValidator(_variable), PlainSerializer(_hidden)]
