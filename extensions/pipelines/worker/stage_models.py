"""The models that stages of a pipeline name, as the registry has them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from penstock.broker.store.aio import AsyncStore
from penstock.errors import HandlerLoadError
from penstock.extensions.pipelines.spec import PipelineSpec, PipelineStage, announced, announced_stages
from penstock.model_spec import Limits, ModelInfo, VersionInfo
from penstock.rollout import followed

# Also how long a stage may still be submitted to a version that is no longer the default.
_REFRESH_S = 1.0
JSON = "application/json"


class StageModel(NamedTuple):
    """The version that runs a stage. `info` is None while no worker has loaded it."""

    version: str
    limits: Limits
    info: VersionInfo | None


class StageUnusable(HandlerLoadError):
    """A stage names a model that cannot run it. No caller's error, because those blame the input of the pipeline's job."""


class StageModels:
    """For one event loop. Every call raises `StoreUnavailable` while the store is away."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._known: Mapping[str, ModelInfo] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def find(self, stage: PipelineStage) -> StageModel:
        """The version that runs a stage submitted now. Raises `StageUnusable`, with the stage's name and what to do, also for a
        pipeline that is a stage of itself.
        """
        await self._refresh()
        info = self._known.get(stage.model)
        if info is None:
            raise StageUnusable(f"stage {stage.name!r} needs the model {stage.model!r}: {self._why_unknown(stage.model)}")
        version = stage.version or info.default_version
        if version not in info.versions:
            known = ", ".join(info.versions) or "none"
            raise StageUnusable(
                f"stage {stage.name!r} needs version {version!r} of {stage.model!r}, whose versions are {known}"
            )
        if circle := self._circle(stage, ()):
            raise StageUnusable(
                f"pipelines {', '.join(circle)}: each is a stage of itself by way of the others, so none could ever end",
                hint="load one of them with other stages",
            )
        return StageModel(version, info.limits, info.versions[version])

    def _circle(self, stage: PipelineStage, above: tuple[tuple[str, str], ...]) -> list[str]:
        """The pipelines below the stage that come back to themselves; empty if none does. Those that are loaded elsewhere are
        known by what their executors announce, so no settings show all of them.
        """
        info = self._known.get(stage.model)
        version = stage.version or (info.default_version if info else "")
        if (stage.model, version) in above:
            return [name for name, _ in above[above.index((stage.model, version)) :]]
        loaded = info.versions.get(version) if info else None
        inner = announced_stages(loaded)
        circles = (self._circle(one, (*above, (stage.model, version))) for one in inner)
        return next((circle for circle in circles if circle), [])

    async def _refresh(self) -> None:
        """Read the registry, once for all drives that find it old at the same time."""
        if time.monotonic() < self._read_at + _REFRESH_S:
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._on_read)
        await asyncio.shield(self._reading)

    def _on_read(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # seen here, because every drive may have been broken off

    async def _read(self) -> None:
        models, rollouts = await self._store.models(), await self._store.rollouts()
        infos = {name: stored.info for name, stored in models.items() if stored.info is not None}
        changed = {name: followed(info, rollouts[name].rollout if name in rollouts else None) for name, info in infos.items()}
        self._known = {name: info for name, info in changed.items() if info is not None}
        self._read_at = time.monotonic()

    def _why_unknown(self, model: str) -> str:
        near = get_close_matches(model, self._known, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        return f"no gateway or worker has it in its settings; {meant}declare it in [models.{model}], or correct the stage"


async def described(spec: PipelineSpec, models: StageModels) -> VersionInfo | None:
    """What callers learn of a pipeline: what its first stages take, and what its last one gives.

    None while the model of a first stage is still being loaded. Raises `StageUnusable` as `find` does.
    """
    by_stage = {stage.name: await models.find(stage) for stage in spec.stages}
    first = [by_stage[stage.name].info for stage in spec.roots()]
    known = [info for info in first if info is not None]
    if len(known) < len(first):
        return None
    accepts = [kind for kind in (known[0].accepts if known else ("*/*",)) if all(kind in info.accepts for info in known)]
    result = spec.result()
    last = by_stage[result].info if isinstance(result, str) and result in by_stage else None
    return VersionInfo(
        input_schema=known[0].input_schema if len(known) == 1 else None,
        output_schema=last.output_schema if last else None,
        accepts=tuple(accepts) or (JSON,),
        description=" → ".join(_told(spec)),
        answers=last.answers if last else (),
        stages=announced(spec.stages),
    )


def _told(spec: PipelineSpec) -> Iterator[str]:
    for stage in spec.stages:
        yield stage.name if stage.name == stage.model else f"{stage.name} ({stage.model})"
