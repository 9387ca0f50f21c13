"""Changes of models while they run: load, switch, scale, unload, undo. Each is one compare-and-set in the store (D23)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import StoredModel, StoredRollout
from penstock.errors import ConfigError, Conflict, InvalidInput
from penstock.gateway.models.finding import unknown_model
from penstock.gateway.models.queues import unfinished_of
from penstock.gateway.models.registry import ModelRegistry
from penstock.job import MODEL_NAME, RESERVED_NAME
from penstock.model_spec import ModelInfo, ModelSpec, info_of_spec, name_fault
from penstock.rollout import SETTLED_AFTER_S, Rollout, check_load, check_scale, check_switch, check_unload, followed
from penstock.settings.extension_tables import driven_spec
from penstock.settings.models import checked_version, refuse_local, spec_of

_TRIES = 5
Change = Callable[[Rollout], Rollout]


class ModelChanges:
    """The changes that operators may make, over any protocol. After each change the registry is refreshed.

    Workers follow within milliseconds, at the latest at their next beat; gateways within a second.
    """

    def __init__(self, store: AsyncStore, registry: ModelRegistry) -> None:
        self._store = store
        self._registry = registry

    async def load_version(self, model: str, table: dict[str, Any]) -> None:
        """Have workers load the version that the table names, from its source below their `model_dir`.

        An unknown model is created, with this version as its default. With `slots` 0 nothing is loaded
        until the version is scaled up. Raises `InvalidInput`, `Conflict`.
        """
        if model == RESERVED_NAME:
            raise invalid("/model", name_fault(model))
        if not MODEL_NAME.fullmatch(model):
            raise unknown_model(model, self._registry.models)
        rest = dict(table)
        version = checked_name(rest.pop("version", None), "version")
        if (driven := _driven_spec(model, version, rest)) is not None:
            await self._registry.refresh()
            for part in self._registry.parts:
                if part.check_load is not None:
                    part.check_load(self._registry, driven)
            await self._load(driven, rest)
            return
        if is_off := rest.get("slots") == 0 and rest["slots"] is not False:
            del rest["slots"]
        checked_source(rest.get("source"))
        full = _checked_table(rest)
        await self._registry.refresh()
        self._require_folder()
        await self._load(spec_of(model, version, full), rest, is_off=is_off)

    async def _load(self, spec: ModelSpec, rest: dict[str, Any], *, is_off: bool = False) -> None:
        model, version = spec.name, spec.version
        info, is_free = self._info(model), await self._is_free(model, version)

        def change(rollout: Rollout) -> Rollout:
            check_load(info, rollout, version, is_free=is_free)
            loaded = rollout.load(version, rest)
            loaded = loaded.scaled(version, 0) if is_off else loaded
            return loaded if info and followed(info, rollout) else loaded.switch(version)

        await change_rollout(self._store, model, change)
        if info is None:
            await self._announce(info_of_spec(spec))
        await self._registry.refresh()

    async def switch_version(self, model: str, version: str) -> None:
        """Raises `NotFound`, and `Conflict` unless the version is ready or scaled to no slots on purpose."""
        await self._registry.refresh()
        entry, _ = await self._registry.find(model)
        wanted = entry.versions.get(version)
        ready_slots = wanted.capacity.ready_slots if wanted else 0
        # Callers of an unloaded version wait for one load, as they would without the switch.
        is_off = wanted is not None and (wanted.is_off or wanted.capacity.is_served)
        check_switch(entry.info, version, ready_slots=ready_slots, is_off=is_off)
        await self._changed(model, lambda rollout: rollout.switch(version))

    async def scale(self, model: str, slots: Any, *, version: str = "") -> str:
        """Set a version's slots per worker process (empty: the default version); `auto` undoes that. Returns the version.

        Raises `NotFound`, and `InvalidInput` for an invalid number of slots.
        """
        await self._registry.refresh()
        entry, default = await self._registry.find(model)
        name = version or default.name
        count = check_scale(entry.info, name, slots)
        await self._changed(model, lambda rollout: rollout.released(name) if count is None else rollout.scaled(name, count))
        return name

    async def batch(self, model: str, version: str, policy: dict[str, Any]) -> None:
        """Set these fields of the batch policy of a version that was loaded at run time. Its workers reload it after
        their running batches.

        Raises `NotFound`, `InvalidInput`, and `Conflict` for a version of the settings, which define its policy.
        """
        await self._registry.refresh()
        entry, wanted = await self._registry.find(model, version)
        table = self._registry.rollout(model).added.get(wanted.name)
        if table is None:
            raise Conflict(
                f"version {wanted.name!r} of {entry.name!r} is one of the settings, which say how it is batched",
                hint="Change max_batch_size and max_wait_s there, or load the same source under a version of its own.",
            )
        _checked_table({**table, **policy})

        def change(rollout: Rollout) -> Rollout:
            if wanted.name not in rollout.added:
                raise _changed_by_others(model)
            return rollout.batched(wanted.name, policy)

        await self._changed(model, change)

    async def unload_version(self, model: str, version: str) -> None:
        """Raises `Conflict` for the default version, `NotFound` for an unknown one."""
        await self._registry.refresh()
        entry, _ = await self._registry.find(model)
        check_unload(entry.info, version)
        now = await self._store.now()

        def change(rollout: Rollout) -> Rollout:
            for part in self._registry.parts:
                if part.check_unload is not None:
                    part.check_unload(rollout, model, version)
            return rollout.unload(version, now)

        await self._changed(model, change)

    async def unload_model(self, model: str) -> None:
        """Stop new jobs for all versions; waiting jobs still run. Raises `NotFound`.

        A model that no settings name is then forgotten; others come back with a reset.
        """
        await self._registry.refresh()
        await self._registry.find(model)
        known, named = self._registry.known_versions(model), self._registry.named_versions(model)
        now = await self._store.now()
        await self._changed(model, lambda rollout: rollout.unload_all(known | named, named, now))

    async def reset(self, model: str) -> None:
        """Undo all changes. Versions that no settings name get no new jobs; waiting jobs still run. Raises `NotFound`."""
        await self._registry.refresh()
        if model not in self._registry.rollouts and model not in self._registry.models:
            raise unknown_model(model, self._registry.models)
        known, named = self._registry.known_versions(model), self._registry.named_versions(model)
        now = await self._store.now()
        await self._changed(model, lambda rollout: rollout.reset(known, named, now))

    async def view(self, model: str) -> dict[str, Any]:
        """The operators' changes as JSON, and the state of each unloaded version. Raises `NotFound` if there are none."""
        await self._registry.refresh()
        rollout = self._registry.rollout(model)
        if model not in self._registry.models and rollout == Rollout():
            raise unknown_model(model, self._registry.models)
        return {
            "model": model,
            "changes": rollout.changes,
            "default_version": rollout.default_version or None,
            "loaded": sorted(rollout.added.keys() - rollout.removed.keys()),
            "workers": rollout.scale,
            "split": bool(rollout.split),
            "paused": {"followed": self._registry.slots(model, "").is_followed} if rollout.paused else None,
            "limits": rollout.limits,
            "unloading": {version: await self._left(model, version) for version in rollout.removed},
        }

    async def _left(self, model: str, version: str) -> dict[str, Any]:
        jobs = await unfinished_of(self._store, self._registry, model, version)
        slots = self._registry.slots(model, version)
        is_gone = await self._is_gone(model, version, self._registry.rollout(model))
        return {"waiting": jobs.waiting, "running": jobs.running, "slots": slots.ready + slots.loading, "gone": is_gone}

    async def is_gone(self, model: str, version: str = "") -> bool:
        """Whether an unloaded version is gone, so that its name is free; without a version: whether all of the model's are."""
        await self._registry.refresh()
        rollout = self._registry.rollout(model)
        versions = {version} if version else {*self._registry.known_versions(model), *rollout.added, *rollout.removed}
        return all([await self._is_gone(model, name, rollout) for name in versions])

    async def _is_gone(self, model: str, version: str, rollout: Rollout) -> bool:
        if version in rollout.undone:
            return False
        if version in rollout.removed:
            return await self._is_free(model, version)
        entry = self._registry.models.get(model)
        return entry is None or version not in entry.versions

    async def _is_free(self, model: str, version: str) -> bool:
        """Whether a removed version has neither jobs nor slots, and no gateway or worker that could bring it back."""
        removed_at = self._registry.rollout(model).removed.get(version)
        slots = self._registry.slots(model, version)
        if removed_at is None or slots.ready or slots.loading or slots.failed or not slots.is_followed:
            return False
        left = await unfinished_of(self._store, self._registry, model, version)
        return not (left.waiting or left.running) and await self._store.now() >= removed_at + SETTLED_AFTER_S

    def _info(self, model: str) -> ModelInfo | None:
        entry = self._registry.models.get(model)
        return entry.info if entry else None

    def _require_folder(self) -> None:
        """Raises `Conflict` if no live worker could load the version. Without live workers, a later one may."""
        workers = self._registry.workers
        if workers and not any(worker.loads for worker in workers):
            raise Conflict(
                f"none of the {len(workers)} live workers has a worker.model_dir, so none could load the version",
                hint="Set worker.model_dir in the settings of workers to a folder with the sources, and restart them.",
            )

    async def _changed(self, model: str, change: Change) -> None:
        await change_rollout(self._store, model, change)
        await self._registry.refresh()

    async def _announce(self, fresh: ModelInfo) -> None:
        """Announce the version before any worker has loaded it, so that a new model is listed at once."""
        for _ in range(_TRIES):
            stored = (await self._store.models()).get(fresh.name, StoredModel())
            if await self._store.swap_model(stored, _joined(stored.info, fresh)):
                return
        raise _changed_by_others(fresh.name)


async def change_rollout(store: AsyncStore, model: str, change: Change) -> None:
    """Replace the model's rollout by `change` of it; repeat if another process changed it in the meantime.

    Raises `Conflict` if others keep changing it.
    """
    for _ in range(_TRIES):
        stored = (await store.rollouts()).get(model) or StoredRollout()
        if await store.swap_rollout(model, stored, change(stored.rollout)):
            return
    raise _changed_by_others(model)


def _joined(known: ModelInfo | None, fresh: ModelInfo) -> ModelInfo:
    """The new model, with removed versions that still finish their jobs, and with its queues."""
    known = known or fresh
    versions = {**known.versions, **fresh.versions}
    return replace(fresh, versions=versions, partitions=known.partitions, held=known.held, placing=known.placing)


def _changed_by_others(model: str) -> Conflict:
    return Conflict(f"others are changing model {model!r} at the same time", hint="Read the model, then try again.")


def checked_source(source: Any) -> str:
    """The source: a relative path below the workers' `model_dir`, of a file or of an archive's folder (with a slash at its
    end).

    Raises `InvalidInput` for other sources: a module's name could import any installed package, and an absolute path
    could load any file on the worker's disk.
    """
    text = source if isinstance(source, str) else ""
    path = PurePosixPath(text.partition(".py:")[0] + (".py" if ".py:" in text else ""))
    foreign = any(mark in text for mark in ("\\", "\0", "://"))
    if not text or foreign or path.is_absolute() or ".." in path.parts or not (path.suffix or text.endswith("/")):
        raise invalid("/source", "must be the relative path of a model file below worker.model_dir, such as square/2.py")
    return text


def checked_name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not MODEL_NAME.fullmatch(name):
        raise invalid(f"/{what}", f"must be a {what} name: 1 to 64 letters, digits, '_', '.' or '-'")
    return name


def _driven_spec(model: str, version: str, table: dict[str, Any]) -> ModelSpec | None:
    """The spec of a version that an extension drives; None: it is loaded from a source."""
    try:
        return driven_spec(model, version, table)
    except ConfigError as error:
        faults = [{"pointer": "", "detail": fault} for fault in error.faults]
        raise InvalidInput("the settings of this version cannot be used", errors=faults) from None


def _checked_table(table: dict[str, Any]) -> dict[str, Any]:
    try:
        refuse_local(table)
        return checked_version(table)
    except ConfigError as error:
        faults = [{"pointer": "", "detail": fault} for fault in error.faults]
        raise InvalidInput("the settings of this version cannot be used", errors=faults) from None


def invalid(pointer: str, detail: str) -> InvalidInput:
    return InvalidInput(f"{pointer.removeprefix('/')} {detail}", errors=[{"pointer": pointer, "detail": detail}])
