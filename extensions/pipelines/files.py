"""Pipelines that Python files declare: read in a process of its own, because a command never imports the code of models."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, PenstockError
from penstock.extension import DeclaredInFile, lent_modules

# Importing a library of models may take this long on a cold disk.
_WITHIN_S = 120.0
_MOST_BYTES = 1 << 20
_TOLD_LINES = 3


@dataclass(slots=True)
class FoundPipelines:
    """The tables of pipelines by name, and the sources of their models."""

    pipelines: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)


def declared_pipelines(path: Path) -> DeclaredInFile | None:
    """None if the file declares no pipeline. Raises `ConfigError`."""
    if not declares_pipelines(path):
        return None
    pipelines = read_pipelines(path)
    return DeclaredInFile(pipelines.models, {"pipelines": pipelines.pipelines})


def declares_pipelines(path: Path) -> bool:
    """Whether the file assigns a call of `penstock.pipeline` at its top level; the file is not run."""
    try:
        text = path.read_text("utf-8")
        if "pipeline(" not in text:
            return False
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        # The faults of the file are reported where it is loaded.
        return False
    values = [node.value for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr))]
    called = [ast.unparse(value.func) for value in values if isinstance(value, ast.Call)]
    return bool({"penstock.pipeline", "pipeline"} & set(called))


def read_pipelines(path: Path) -> FoundPipelines:
    """What the file declares. Raises `ConfigError` if it cannot be run, with the last lines of its output."""
    # The file may read the environment, but no address or password of ours.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "REDIS_"))}
    command = [sys.executable, "-m", __name__, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_WITHIN_S, check=False, env=env)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{path} was not read within {_WITHIN_S:g} s", hint="keep slow work out of its top level") from None
    answer = done.stdout[-_MOST_BYTES:].rpartition(b"\0")[2]
    if done.returncode or not answer:
        said = " | ".join(done.stderr[-_MOST_BYTES:].decode("utf-8", "replace").strip().splitlines()[-_TOLD_LINES:])
        raise ConfigError(f"{path}: its pipelines cannot be read: {said or f'it ended with {done.returncode}'}")
    return FoundPipelines(**json.loads(answer))


def _declared(path: Path) -> FoundPipelines:
    from penstock.extensions.pipelines.declared import DeclaredPipeline
    from penstock.handlers.modules import import_file

    declared = FoundPipelines()
    for value in vars(import_file(path, modules=lent_modules())).values():
        if isinstance(value, DeclaredPipeline):
            declared.pipelines[value.name] = value.table
            declared.models |= value.models
    return declared


def main() -> int:
    """Write what the file declares to stdout, behind a zero byte, because the file may print something too."""
    try:
        declared = _declared(Path(sys.argv[1]))
    except PenstockError as error:
        faults = [str(fault) for fault in getattr(error, "faults", ())]
        sys.stderr.write(" ".join([error.message, *faults]) + "\n")
        return 1
    sys.stdout.write("\0" + json.dumps({"pipelines": declared.pipelines, "models": declared.models}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
