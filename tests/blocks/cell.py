"""Runs the Python blocks of a page, one after another in one namespace, as a notebook does.

Each line of stdin names a block: `{"path": ..., "name": ..., "cwd": ..., "env": {...}}`. After it ran, a line of JSON says what
each of its prints printed, by line, between two record separators.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import io
import json
import linecache
import os
import sys
import traceback
import types
from pathlib import Path
from typing import Any

_END = "\x1e"
_print = builtins.print
_printed: list[tuple[int, str]] = []


def main() -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    builtins.print = _recorded
    sys.path.insert(0, "")
    for line in sys.stdin:
        block = json.loads(line)
        os.chdir(block["cwd"])
        os.environ.clear()
        os.environ.update(block["env"])
        _printed.clear()
        failed = not _has_run(Path(block["path"]).read_text(), block["name"], module.__dict__)
        _print(_END + json.dumps({"failed": failed, "printed": _printed}) + _END, flush=True)


def _recorded(*values: object, **options: Any) -> None:
    """`print`, which also keeps the text with the line of the block that printed it."""
    if options.get("file") is None:
        text = io.StringIO()
        _print(*values, **{**options, "file": text, "flush": False})
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        _printed.append((frame.f_back.f_lineno, text.getvalue()))
    _print(*values, **options)


def _has_run(source: str, name: str, namespace: dict[str, Any]) -> bool:
    # Tracebacks show the lines of the block, and inspect finds them.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        code = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(types.FunctionType(code, namespace)())
        else:
            exec(code, namespace)
    except Exception:  # noqa: BLE001 - whatever the block raises is told with the page
        _print(traceback.format_exc(), flush=True)
        return False
    return True


if __name__ == "__main__":
    main()
