"""The versions that this worker serves: those of its settings, and what operators changed at run time."""

# D23: a rollout in the store stands over the settings, and each beat follows it.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.model_spec import ModelInfo, ModelSpec, info_of_spec
from penstock.rollout import Rollout, followed
from penstock.settings.tables import Settings
from penstock.workers.fleet.rollouts import Key, key_of, known_specs, scaled_keys, served_keys
from penstock.workers.slot.context import ALL_MODELS


@dataclass(frozen=True, slots=True)
class VersionChange:
    to_start: Sequence[ModelSpec] = ()
    to_retire: Sequence[Key] = ()


class ServedVersions:
    """`specs` are the versions to serve, `infos` the models that the settings name, `refused` says why others cannot be served.
    `scaled` are those whose number of slots an operator set. `announced` are the models of the registry, as the last beat found
    them; `marks` name the rollouts that this worker follows. `paused` are the models that an operator paused, and
    `is_drained`: one has this worker take no jobs.

    Only the beat's thread changes them; any thread may read.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.specs = [*settings.specs(), *settings.driven_specs()]
        self.infos = {info.name: info for info in settings.model_infos()}
        self.rollouts: Mapping[str, Rollout] = {}
        self.marks: Mapping[str, str] = {}
        self.paused: set[str] = set()
        self.is_drained = False
        self.announced: dict[str, ModelInfo] = {}
        self.refused: dict[Key, str] = {}
        self.scaled: Mapping[Key, int] = {}
        # The tables of the loaded versions; None: as the settings say.
        self._served: dict[Key, Mapping[str, Any] | None] = {key_of(spec): None for spec in self.specs}

    def follow(self, rollouts: Mapping[str, Rollout], waiting: Callable[[str, str], int], *, now: float) -> VersionChange:
        """What to do now that these rollouts hold. `waiting` counts a version's waiting jobs; `now` is by the store's clock.

        Each version is named again by the next call until `mark_started` or `mark_retired` says that it is done: one that
        finds no place now may find one then. A version that is named by both is first to be retired: its name was given to
        other code while this worker stood still.
        """
        if not (rollouts or self.rollouts):
            self.refused = {}
            return VersionChange()
        self.rollouts = rollouts
        own = {(name, version) for name, info in self.infos.items() for version in info.versions}
        specs, refused = known_specs(self._settings, rollouts)
        keep = served_keys(specs.keys() | refused.keys(), own, rollouts, waiting, now=now)
        self.specs = [spec for key, spec in specs.items() if key in keep]
        self.refused = {key: why for key, why in refused.items() if key in keep}
        self.scaled = scaled_keys(specs.keys() & keep, rollouts, waiting)
        former = {key for key in self._served if key not in keep or self._is_other_code(key)}
        missing = sorted((keep & specs.keys()) - (self._served.keys() - former))
        return VersionChange([specs[key] for key in missing], sorted(former))

    def _is_other_code(self, key: Key) -> bool:
        table = self._table(key)
        return table is not None and table != self._served[key]

    def _table(self, key: Key) -> Mapping[str, Any] | None:
        rollout = self.rollouts.get(key[0])
        return rollout.added.get(key[1]) if rollout and key[1] not in rollout.undone else None

    def is_served(self, spec: ModelSpec) -> bool:
        """Whether the version was started here."""
        return key_of(spec) in self._served

    def mark_started(self, spec: ModelSpec) -> None:
        self._served[key_of(spec)] = self._table(key_of(spec))

    def mark_retired(self, key: Key) -> None:
        self._served.pop(key, None)

    def refuse(self, spec: ModelSpec, why: str) -> None:
        """Note that a version which was to have a slot, or one more, has no place here."""
        self.refused[key_of(spec)] = why

    def is_wanted(self, spec: ModelSpec) -> bool:
        """Whether new jobs of the version are accepted, and not only those run that were accepted before."""
        rollout = self.rollouts.get(spec.name)
        return rollout is None or spec.version not in rollout.removed

    def pause(self, *, is_drained: bool) -> bool:
        """Note what is paused now, by the rollouts that were followed last. Whether that is another state than before."""
        wanted = {model for model, rollout in self.rollouts.items() if rollout.paused} | ({ALL_MODELS} if is_drained else set())
        is_other, self.is_drained = wanted != self.paused, is_drained
        # In this order, because slots read it meanwhile.
        self.paused |= wanted
        self.paused &= wanted
        return is_other

    def is_paused(self, spec: ModelSpec) -> bool:
        """Whether slots of the version are to claim nothing, because an operator paused the model or drained this worker."""
        return self.is_drained or spec.name in self.paused

    def info(self, spec: ModelSpec) -> ModelInfo:
        """The model as callers may name it: its default version, and all announced versions."""
        declared = self.infos.get(spec.name) or info_of_spec(spec)
        announced = self.announced.get(spec.name)
        known = replace(declared, versions={**(announced.versions if announced else {}), **declared.versions})
        return followed(known, self.rollouts.get(spec.name)) or replace(known, versions={})

    def declared_policy(self, spec: ModelSpec) -> frozenset[str]:
        """The fields of the batch policy that no setting sets, so that the handler's own wishes hold."""
        rollout = self.rollouts.get(spec.name)
        table = rollout.added.get(spec.version, {}) if rollout else {}
        return self._settings.policy_left_open(spec) - set(table)
