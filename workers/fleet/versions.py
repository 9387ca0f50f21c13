"""The versions that this worker serves: those of its settings, and what operators changed at run time."""

# D23: a rollout in the store stands over the settings, and each beat follows it.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.model_spec import ModelInfo, ModelSpec
from penstock.rollout import Rollout, followed
from penstock.settings.tables import Settings
from penstock.workers.fleet.rollouts import Key, key_of, known_specs, served_keys


@dataclass(frozen=True, slots=True)
class VersionChange:
    to_start: Sequence[ModelSpec] = ()
    to_retire: Sequence[Key] = ()


class ServedVersions:
    """`specs` are the versions to serve, `infos` the models that the settings name, `refused` says why others cannot be served.
    `announced` are the models of the registry, as the last beat found them.

    Only the beat's thread changes them; any thread may read.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.specs = settings.specs()
        self.infos = {info.name: info for info in settings.model_infos()}
        self.rollouts: Mapping[str, Rollout] = {}
        self.announced: Mapping[str, ModelInfo] = {}
        self.refused: dict[Key, str] = {}
        self._served = {key_of(spec) for spec in self.specs}

    def follow(self, rollouts: Mapping[str, Rollout], waiting: Callable[[str, str], int], *, now: float) -> VersionChange:
        """What to do now that these rollouts hold. `waiting` counts a version's waiting jobs; `now` is by the store's clock.

        Each version is named again by the next call until `mark_started` or `mark_retired` says that it is done: one that
        finds no place now may find one then.
        """
        if not (rollouts or self.rollouts):
            return VersionChange()
        self.rollouts = rollouts
        own = {(name, version) for name, info in self.infos.items() for version in info.versions}
        specs, refused = known_specs(self._settings, rollouts)
        keep = served_keys(specs.keys() | refused.keys(), own, rollouts, waiting, now=now)
        self.specs = [spec for key, spec in specs.items() if key in keep]
        self.refused = {key: why for key, why in refused.items() if key in keep}
        missing = sorted((keep & specs.keys()) - self._served)
        return VersionChange([specs[key] for key in missing], sorted(self._served - keep))

    def mark_started(self, spec: ModelSpec) -> None:
        self._served.add(key_of(spec))

    def mark_retired(self, key: Key) -> None:
        self._served.discard(key)

    def refuse(self, spec: ModelSpec, why: str) -> None:
        """Note that a version which was to start has no place here."""
        self.refused[key_of(spec)] = why

    def info(self, spec: ModelSpec) -> ModelInfo:
        """The model as callers may name it: its default version, and all versions that anybody announced."""
        declared = self.infos.get(spec.name) or ModelInfo(spec.name, spec.version, versions={spec.version: None})
        announced = self.announced.get(spec.name)
        known = replace(declared, versions={**(announced.versions if announced else {}), **declared.versions})
        return followed(known, self.rollouts.get(spec.name)) or replace(known, versions={})

    def declared_policy(self, spec: ModelSpec) -> frozenset[str]:
        """The fields of the batch policy that nobody set, so that the handler's own wishes hold."""
        rollout = self.rollouts.get(spec.name)
        table = rollout.added.get(spec.version, {}) if rollout else {}
        return self._settings.policy_left_open(spec) - set(table)
