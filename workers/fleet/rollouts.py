"""Decides which versions a worker should serve now, from its settings and the rollouts. Pure, but for looking up files."""

# D23: a rollout stands over the settings.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, PenstockError
from penstock.model_spec import ModelSpec
from penstock.rollout import SETTLED_AFTER_S, Rollout
from penstock.settings.source_kinds import kind_of
from penstock.settings.tables import Settings

Key = tuple[str, str]


def key_of(spec: ModelSpec) -> Key:
    return spec.name, spec.version


def known_specs(settings: Settings, rollouts: Mapping[str, Rollout]) -> tuple[dict[Key, ModelSpec], dict[Key, str]]:
    """The specs of all versions that can be loaded here, and for each other version the reason why it cannot."""
    own = {key_of(spec): spec for spec in (*settings.specs(), *settings.driven_specs())}
    specs, refused = dict(own), dict[Key, str]()
    for model, rollout in rollouts.items():
        for version, table in rollout.added.items():
            if version in rollout.undone and (model, version) in own:
                continue
            try:
                specs[model, version] = _added(settings, model, version, table)
            except PenstockError as error:
                # Code of the same name that the settings have is not what the operator asked for.
                specs.pop((model, version), None)
                refused[model, version] = error.message
    return specs, refused


def _added(settings: Settings, model: str, version: str, table: Mapping[str, Any]) -> ModelSpec:
    """Raises `PenstockError` if the version cannot be loaded here."""
    spec = settings.added_spec(model, version, table)
    if spec.driven_by:
        return spec
    source = find_source(spec.source, settings.worker.model_dir)
    if kind_of(source) is None:
        return replace(spec, source=source)
    # Only now the place of the source, which says more of its model, is known.
    return settings.added_spec(model, version, {**table, "source": source})


def find_source(source: str, model_dir: Path | None) -> str:
    """The path of the source below `model_dir`. Raises `ConfigError` if it is missing, or a link leads out of the folder."""
    if model_dir is None:
        raise ConfigError("worker.model_dir is not set on this worker, so it loads nothing at run time")
    file, colon, name = source.partition(".py:")
    path = (model_dir / (file + ".py" if colon else source)).resolve()
    if not path.is_relative_to(model_dir.resolve()):
        raise ConfigError(f"{source} does not lie in the worker's model_dir")
    if not path.exists():
        raise ConfigError(f"there is no {source} in this worker's model_dir; copy it there")
    return f"{path}:{name}" if colon else str(path)


def served_keys(
    keys: Iterable[Key], own: Set[Key], rollouts: Mapping[str, Rollout], waiting: Callable[[str, str], int], *, now: float
) -> set[Key]:
    """The versions to serve: all that were not removed, and each removed one until no job waits for it.

    A reset removes no version of the worker's `own`, which its settings name. A removed version is served again if a job comes
    back to it, for instance from a worker that died. `waiting` counts a version's waiting jobs; `now` is Unix time.
    """

    def is_served(key: Key) -> bool:
        model, version = key
        rollout = rollouts.get(model)
        if rollout is None or version not in rollout.removed or (version in rollout.undone and key in own):
            return True
        return now < rollout.removed[version] + SETTLED_AFTER_S or waiting(model, version) > 0

    return {key for key in keys if is_served(key)}


def scaled_keys(keys: Iterable[Key], rollouts: Mapping[str, Rollout], waiting: Callable[[str, str], int]) -> dict[Key, int]:
    """The number of slots of each version that an operator gave one. `waiting` counts a version's waiting jobs."""

    def count(key: Key) -> int | None:
        model, version = key
        rollout = rollouts.get(model)
        if rollout is None or version not in rollout.scale:
            return None
        return rollout.slots_of(version, has_waiting=version in rollout.removed and waiting(model, version) > 0)

    return {key: number for key in keys if (number := count(key)) is not None}
