"""The call that `penstock up` suggests when it is ready: a command that works as it is printed."""

from __future__ import annotations

import ast
import json
import shlex
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from penstock.cli.completion import gateway_option
from penstock.handlers.example_input import NoExample, example_input
from penstock.running_stack import running_gateway, state_dir_of

_UNKNOWN = "INPUT"
# Long enough for a machine whose cores are all at work while the models warm up.
_TIMEOUT_S = 10.0
# A longer input, such as an image as nested lists, is nothing to copy from a terminal.
_MOST_CHARACTERS = 120


def first_call(url: str, model: str, *, state_dir: Path) -> str:
    """`penstock call MODEL INPUT`, with an input that fits the model's schema; INPUT if the schema says too little.

    The address is part of it only where the command would not find the gateway by itself: with a state folder elsewhere.
    """
    is_default = state_dir.absolute() == state_dir_of(Path.cwd()).absolute() or running_gateway(Path.cwd()) == url
    return f"penstock call {model} {_example(_schema(url, model))}{'' if is_default else gateway_option(url)}"


def other_name(model: str, source: str) -> str:
    """The name of the one decorated function in the model's file, if the model has the file's name instead; else empty."""
    file = Path(source)
    if file.name != f"{model}.py":
        return ""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError):
        return ""  # the model's own start says what is wrong with its file
    names = [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and _is_model(one)]
    return names[0] if len(names) == 1 and names[0] != model else ""


def _is_model(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in function.decorator_list]
    return any(ast.unparse(mark) in ("model", "penstock.model") for mark in marks)


def _example(schema: Any) -> str:
    if not isinstance(schema, dict):
        return _UNKNOWN
    try:
        text = json.dumps(example_input(schema), ensure_ascii=False)
    except NoExample:
        return _UNKNOWN
    return shlex.quote(text) if len(text) <= _MOST_CHARACTERS else _UNKNOWN


def _schema(url: str, model: str) -> Any:
    """The input schema of the model's default version; None where the gateway needs a key, or says nothing."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", f"/v1/models/{quote(model)}")
        response = connection.getresponse()
        view = json.loads(response.read()) if response.status == 200 else {}
        return view["versions"][view["default_version"]]["input_schema"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()
