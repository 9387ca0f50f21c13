"""The calls that write log lines, read from the sources: event, level, fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.markdown import ROOT

# Packages whose processes write events. What `handlers/` logs are sentences of a model's code; `handler_said` carries them.
PACKAGES = {
    "core": "store",
    "broker": "store",
    "embedded": "store",
    "gateway": "gateway",
    "workers": "worker",
    "runs": "runner",
}
# The processes of an extension's parts; what lies in no part is the gateway's.
PARTS = {"worker": "worker", "worker.py": "worker", "runs": "runner", "store": "store", "store.py": "store"}
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
JOB_FIELDS = ("job_id", "model", "version", "batch_id", "trace_id")


@dataclass(frozen=True, slots=True)
class LogCall:
    """`event`: the text, or the expression of the source where the text is not there; `fields` that begin with `**` too."""

    file: str
    event: str
    is_text: bool
    level: str
    fields: tuple[str, ...]


def log_calls() -> list[LogCall]:
    constants = dict(_constants())
    found = []
    for file in _files():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and _is_log(node):
                found.append(_read(node, file.relative_to(ROOT).as_posix(), constants))
    return found


def process_of(file: str) -> str:
    """The process that writes a file's events."""
    top, *inside = file.split("/")
    return PARTS.get(inside[1], "gateway") if top == "extensions" else PACKAGES[top]


def _files() -> Iterator[Path]:
    for package in (*PACKAGES, "extensions"):
        files = sorted((ROOT / package).rglob("*.py"))
        yield from (file for file in files if "extensions" not in file.parts or "child" not in file.parts)


def _constants() -> Iterator[tuple[str, str]]:
    for file in _files():
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        yield target.id, node.value.value


def _is_log(call: ast.Call) -> bool:
    name = call.func
    # `write` is one of two methods, by the end of the job.
    if isinstance(name, ast.Name):
        return name.id == "write" and bool(call.args) and ast.unparse(call.args[0]).startswith("logs.")
    return isinstance(name, ast.Attribute) and name.attr in LEVELS and ast.unparse(name.value).split(".")[-1] in ("log", "_log")


def _read(call: ast.Call, file: str, constants: dict[str, str]) -> LogCall:
    name = ast.unparse(call.func).rpartition(".")[2]
    first = call.args[0]
    text = first.value if isinstance(first, ast.Constant) else constants.get(ast.unparse(first).rpartition(".")[2])
    fields = [field for keyword in call.keywords for field in _fields(keyword)]
    return LogCall(file, str(text or ast.unparse(first)), text is not None, LEVELS.get(name, "info"), tuple(fields))


def _fields(keyword: ast.keyword) -> Iterator[str]:
    if keyword.arg not in (None, "extra", "exc_info"):
        yield str(keyword.arg)
    elif keyword.arg != "exc_info":
        yield from _entries(keyword.value)


def _entries(value: ast.expr) -> Iterator[str]:
    """The keys of a dictionary that is written there; else the expression."""
    if isinstance(value, ast.IfExp):
        yield from (*_entries(value.body), *_entries(value.orelse))
    elif isinstance(value, ast.Dict):
        for key, entry in zip(value.keys, value.values, strict=True):
            yield str(key.value) if isinstance(key, ast.Constant) else f"**{ast.unparse(entry)}"
    elif isinstance(value, ast.Call) and ast.unparse(value.func).endswith("job_fields"):
        yield from JOB_FIELDS
    else:
        yield f"**{ast.unparse(value)}"
