"""An operator's change of a model while it runs: versions added or removed, another default, other numbers of slots. Pure.

The change is kept in the store and overrides the settings of every gateway and worker until it is reset; a restart does not
undo it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.model_spec import Limits, ModelInfo

# Gateways look for changes twice a second; after this time no gateway submits to a removed version. It is a
# time, because those who submit are not known to the store: nothing tells that the last one has seen the change.
SETTLED_AFTER_S = 5.0
# A gateway that stood still submits to a removed version later than that, and its job brings the version back, until then.
FORGOTTEN_AFTER_S = 600.0
# Of one version in one worker process: as many as a large machine has cores. A zero too many starts no thousand processes.
MOST_SLOTS = 256
# Of one model, loaded at run time and not forgotten yet: gateways read their settings twice a second, workers at each beat.
MOST_ADDED = 100
# The limits that gateways apply at each submit, so that a change holds for the next one. Workers read the others as they start.
_COUNTS = ("max_queue_depth", "max_attempts", "max_crashes")
_DURATIONS = ("deadline_s", "bulk_deadline_s", "result_ttl_s", "sync_result_ttl_s")
CHANGEABLE_LIMITS = (*_COUNTS, *_DURATIONS)
# Of seconds about thirty years, and more jobs than any store holds.
_LARGEST_LIMIT = 1e9


@dataclass(frozen=True, slots=True)
class Rollout:
    """`added` maps versions to their settings (a `[models.x.versions.v]` table), `removed` to when that was asked (Unix s
    by the store's clock).

    `undone` are the versions that a reset took back. Where settings name such a version, it is served as the settings say;
    elsewhere its jobs are run to their end, and then workers forget it. A version of the settings that was removed without a
    reset stays removed, whatever they say.
    `scale` maps versions to the number of their slots in each worker process; for all others the settings say it.
    `split` divides the requests that name no version; empty: it does not. Only its extension reads it.
    `paused`: jobs are accepted and wait, and workers claim none. `limits` stand over those of the settings, by name.
    """

    default_version: str = ""
    added: dict[str, dict[str, Any]] = field(default_factory=dict)
    removed: dict[str, float] = field(default_factory=dict)
    undone: tuple[str, ...] = ()
    scale: dict[str, int] = field(default_factory=dict)
    split: dict[str, Any] = field(default_factory=dict)
    paused: bool = False
    limits: dict[str, float] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        """Whether the model is served otherwise than the settings say. Versions that a reset took back only end their jobs."""
        is_set = self.default_version or self.scale or self.split or self.paused or self.limits
        return bool(is_set) or not {*self.added, *self.removed} <= set(self.undone)

    def load(self, version: str, table: Mapping[str, Any]) -> Rollout:
        rest = self.without({version})
        return replace(rest, added={**rest.added, version: dict(table)})

    def scaled(self, version: str, slots: int) -> Rollout:
        """`slots` per worker process; 0 is allowed, and then the version's jobs wait."""
        return replace(self, scale={**self.scale, version: slots})

    def released(self, version: str) -> Rollout:
        """The version has as many slots as the settings say, or its work needs."""
        return replace(self, scale={name: count for name, count in self.scale.items() if name != version})

    def batched(self, version: str, policy: Mapping[str, Any]) -> Rollout:
        """With these fields of a batch policy in the table of a version that was added; its workers reload it."""
        return replace(self, added={**self.added, version: {**self.added[version], **policy}})

    def switch(self, version: str) -> Rollout:
        return replace(self, default_version=version)

    def divide(self, split: Mapping[str, Any]) -> Rollout:
        """Empty: all requests that name no version go to the default one again."""
        return replace(self, split=dict(split))

    def pause(self, *, is_paused: bool) -> Rollout:
        return replace(self, paused=is_paused)

    def limited(self, limits: Mapping[str, float | None]) -> Rollout:
        """With these limits over those of the settings; None gives a limit back to them."""
        both = {**self.limits, **limits}
        return replace(self, limits={name: limit for name, limit in both.items() if limit is not None})

    def unload(self, version: str, now: float) -> Rollout:
        """`added` keeps the version's table, because jobs that wait for the version are still run."""
        undone = tuple(name for name in self.undone if name != version)
        return replace(self, removed={**self.removed, version: now}, undone=undone)

    def unload_all(self, known: Iterable[str], named: Set[str], now: float) -> Rollout:
        """Stop new jobs for all versions. Those that were loaded at run time, and that no settings name, are forgotten once
        their jobs have ended, as by `reset`; the others stay removed until a reset. A pause ends: a model that no worker
        serves cannot be resumed.
        """
        versions = {*known, *self.added, *self.removed}
        removed = {version: self.removed.get(version, now) for version in sorted(versions)}
        # A version that was not loaded at run time comes from settings, maybe of a worker that is down and will return.
        undone = tuple(sorted({*self.added, *self.undone} - named))
        return replace(self, default_version="", removed=removed, undone=undone, split={}, paused=False)

    def reset(self, known: Iterable[str], named: Set[str], now: float) -> Rollout:
        """Stop new jobs for those `known` versions that no settings name. `added` keeps their tables, as in `unload`."""
        strays = {*known, *self.added, *self.removed} - named
        removed = {version: self.removed.get(version, now) for version in sorted(strays)}
        return Rollout(added=self.added, removed=removed, undone=tuple(sorted(strays | self.added.keys())))

    def without(self, versions: Set[str]) -> Rollout:
        """The rollout without any entry of these versions."""
        return replace(
            self,
            default_version="" if self.default_version in versions & self.removed.keys() else self.default_version,
            added={name: table for name, table in self.added.items() if name not in versions},
            removed={name: at for name, at in self.removed.items() if name not in versions},
            undone=tuple(name for name in self.undone if name not in versions),
            scale={name: count for name, count in self.scale.items() if name not in versions},
        )

    def slots_of(self, version: str, *, has_waiting: bool) -> int | None:
        """How many slots each worker process is to have of the version; None: as the settings say.

        `has_waiting`: jobs wait for it. If it was removed, they are run to their end, also where it was scaled to none before.
        """
        count = self.scale.get(version)
        return 1 if count == 0 and has_waiting and version in self.removed else count


def over(rollout: Rollout, named: Set[str], is_needed: Callable[[str], bool], *, now: float) -> set[str]:
    """Versions that need no entry any more: they get no new jobs and have no unfinished ones. Of a reset also those that
    settings name; without a reset, only versions that were added, and only after a while.
    """

    def ended(version: str, after_s: float) -> bool:
        asked_at = rollout.removed.get(version)
        return asked_at is not None and now >= asked_at + after_s and not is_needed(version)

    undone = {version for version in rollout.undone if version in named or ended(version, SETTLED_AFTER_S)}
    unloaded = rollout.added.keys() - {*rollout.undone, *named}
    return undone | {version for version in unloaded if ended(version, FORGOTTEN_AFTER_S)}


def followed(info: ModelInfo, rollout: Rollout | None) -> ModelInfo | None:
    """The model as gateways should serve it; None if no version remains."""
    if rollout is None:
        return info if info.versions else None
    versions = {name: known for name, known in info.versions.items() if name not in rollout.removed}
    versions = {**dict.fromkeys(name for name in rollout.added if name not in rollout.removed), **versions}
    if not versions:
        return None
    default = rollout.default_version or info.default_version
    default = default if default in versions else next(iter(versions))
    return replace(info, default_version=default, versions=versions, limits=_limited(info.limits, rollout.limits))


def _limited(limits: Limits, changed: Mapping[str, float]) -> Limits:
    # What a later release may change besides stays as the settings of this one say.
    known = {name: int(limit) if name in _COUNTS else limit for name, limit in changed.items() if name in CHANGEABLE_LIMITS}
    return replace(limits, **known) if known else limits  # type: ignore[arg-type]


def check_load(info: ModelInfo | None, rollout: Rollout, version: str, *, is_free: bool = False) -> None:
    """Raises `Conflict` if the version exists: a version never changes, so that a job's version says what ran.

    `is_free`: nothing of a removed version is left, so its name may be given again.
    """
    served = followed(info, rollout) if info else None
    if served is not None and version in served.versions:
        raise Conflict(
            f"model {served.name!r} has a version {version!r} already",
            hint="Load the new code under a version of its own, switch the default, then unload the old one.",
        )
    if len(rollout.added.keys() - {version}) >= MOST_ADDED:
        raise Conflict(
            f"{len(rollout.added)} versions of this model were loaded at run time and are not forgotten yet",
            hint="Unload versions that are no longer called; they are forgotten ten minutes later.",
        )
    if version in rollout.removed and not (is_free and version not in rollout.undone):
        raise Conflict(
            f"version {version!r} was removed and may still end its jobs",
            hint="Load it under another name, or wait: the name is free a few seconds after its jobs have ended.",
        )


# In the place of a number of slots: as the settings say, or the work needs.
AUTO = "auto"


def check_scale(info: ModelInfo, version: str, slots: Any) -> int | None:
    """The number of slots; None for `AUTO`. Raises `NotFound` for an unknown version, `InvalidInput` for anything else."""
    check_version(info, version)
    if slots == AUTO:
        return None
    if not isinstance(slots, int) or isinstance(slots, bool) or not 0 <= slots <= MOST_SLOTS:
        detail = f'must be a whole number of slots per worker process, from 0 to {MOST_SLOTS}, or "{AUTO}"'
        raise InvalidInput(f"workers {detail}", errors=[{"pointer": "/workers", "detail": detail}])
    return slots


def check_limits(given: Mapping[str, Any]) -> dict[str, float | None]:
    """The limits as they may be changed; None: as the settings say. Raises `InvalidInput`, which names each fault."""
    faults = [
        {"pointer": f"/{name[:60]}", "detail": why} for name, limit in given.items() if (why := _limit_fault(name, limit))
    ]
    if faults or not given:
        known = ", ".join(CHANGEABLE_LIMITS)
        text = f"{faults[0]['pointer'][1:]} {faults[0]['detail']}" if faults else "the body names no limit"
        raise InvalidInput(text, errors=faults, hint=f"At run time these can be changed: {known}; null is what settings say.")
    return dict(given)


def _limit_fault(name: str, limit: Any) -> str:
    if name not in CHANGEABLE_LIMITS:
        return "is no limit that can be changed at run time"
    if limit is None:
        return ""
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if not is_number or not 0 < limit <= _LARGEST_LIMIT:
        return f"must be a number above 0, up to {_LARGEST_LIMIT:g}, or null"
    return "must be a whole number" if name in _COUNTS and not isinstance(limit, int) else ""


def check_version(info: ModelInfo, version: str) -> None:
    """Raises `NotFound` for an unknown version."""
    if version not in info.versions:
        raise NotFound(f"model {info.name!r} has no version {version!r}", hint=f"Its versions: {', '.join(info.versions)}.")


def check_switch(info: ModelInfo, version: str, *, ready_slots: int, is_off: bool = False) -> None:
    """Raises `NotFound` for an unknown version, `Conflict` for one that no worker is ready to run.

    `is_off`: it was scaled to no slots, so callers are to wait.
    """
    check_version(info, version)
    if not ready_slots and not is_off:
        raise Conflict(
            f"version {version!r} of {info.name!r} is not ready on any worker, so callers would wait",
            hint=f"GET /v1/models/{info.name} says what keeps it; switch when it is ready.",
        )


def check_unload(info: ModelInfo, version: str) -> None:
    """Raises `NotFound` for an unknown version, `Conflict` for the default one while there are others."""
    check_version(info, version)
    if version == info.default_version and len(info.versions) > 1:
        raise Conflict(
            f"version {version!r} is the default of {info.name!r}: callers that name none would be left without",
            hint="Switch the default to another version first.",
        )
