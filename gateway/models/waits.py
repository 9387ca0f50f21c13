"""Waiting for a change of a model: until its slots are as wanted, or until unloaded versions are gone."""

from __future__ import annotations

import asyncio
import time

from penstock.gateway.models.changes import ModelChanges
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.models.slots import SlotsState, VersionSlots

_LOOK_S = 0.2
_ENDS = (SlotsState.REACHED, SlotsState.FAILED, SlotsState.UNLOADED)


async def await_slots(registry: ModelRegistry, model: str, version: str = "", *, timeout_s: float) -> VersionSlots:
    """The slots of the version (empty: the default one) once they are as wanted, have failed, or `timeout_s` has passed.

    `state` says which of these. Raises `NotFound`, also if the version is unloaded in the meantime.
    """
    until = time.monotonic() + timeout_s
    await registry.look_again()
    _, wanted = await registry.find(model, version)
    while True:
        slots = registry.slots(model, wanted.name)
        left_s = until - time.monotonic()
        if slots.state in _ENDS or left_s <= 0:
            return slots
        await asyncio.sleep(min(_LOOK_S, left_s))
        await registry.look_again()
        await registry.find(model, wanted.name)


async def await_gone(changes: ModelChanges, model: str, version: str = "", *, timeout_s: float) -> bool:
    """Whether the unloaded versions are gone, after at most `timeout_s`. Then their names can be loaded again.

    Without a version: of any version of the model. Raises `StoreUnavailable`.
    """
    until = time.monotonic() + timeout_s
    while not (is_gone := await changes.is_gone(model, version)):
        left_s = until - time.monotonic()
        if left_s <= 0:
            break
        await asyncio.sleep(min(_LOOK_S, left_s))
    return is_gone
