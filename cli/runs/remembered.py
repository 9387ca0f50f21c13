"""The `--models` and `--config` of a run, kept in the state folder so that a resume need not repeat them.

They are not in the run's record: other users of a shared store must not choose the code that a command here loads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.cli.serve.setup import MODELS_VARIABLE

_FOLDER, _SUFFIX = "runs", ".sources.json"


@dataclass(frozen=True, slots=True)
class Sources:
    """Arguments that are valid in any folder: `models` as NAME=SOURCE, and the settings file, if one was named."""

    models: list[str]
    config: str | None = None

    def __bool__(self) -> bool:
        return bool(self.models or self.config)


def named_sources(env: Mapping[str, str], *, config: bool) -> Sources:
    """The sources in the environment of a command's processes. `config`: the command line names the settings file."""
    models = json.loads(env.get(MODELS_VARIABLE) or "{}")
    return Sources(
        [f"{name}={given['source']}" for name, given in models.items() if given.get("source")],
        env.get("PENSTOCK_CONFIG") if config else None,
    )


def remember(state_dir: Path, run_id: str, sources: Sources) -> None:
    path = _path(state_dir, run_id)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(json.dumps(asdict(sources)), encoding="utf-8")


def recall(state_dir: Path, run_id: str) -> Sources:
    """The sources of a run in this state folder; empty for other runs."""
    try:
        return Sources(**json.loads(_path(state_dir, run_id).read_text("utf-8")))
    except FileNotFoundError:
        return Sources([])


def forget(state_dir: Path, run_id: str) -> None:
    """Delete the sources of a run that no longer needs its model."""
    _path(state_dir, run_id).unlink(missing_ok=True)


def _path(state_dir: Path, run_id: str) -> Path:
    return state_dir / _FOLDER / f"{Path(run_id).name}{_SUFFIX}"
