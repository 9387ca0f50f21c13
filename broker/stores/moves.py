"""Moves a model to another store: its new jobs go there, and what it has elsewhere drains. Nothing is copied.

Every step is one change of the registry, or one mark that may be set again, so a move that was broken off goes on from where
it stopped when it is made again, by anybody.
"""

# D109: docs/design/store.md

from __future__ import annotations

import difflib
import secrets
from collections.abc import Callable
from contextlib import closing

from penstock.broker.store.ops import Command
from penstock.broker.store.registry import identity
from penstock.broker.store.sync import RedisStore
from penstock.broker.stores.model_queues import ModelQueues, MoveStep, swap_queues
from penstock.broker.stores.places import StorePlaces
from penstock.broker.stores.plan import of_store
from penstock.broker.stores.thread_stores import RedisStores
from penstock.errors import Conflict, NotFound, StoreUnavailable
from penstock.job import queue_of
from penstock.model_spec import ModelInfo

_TRIES = 20


class StoreMove:
    """One model's move to the store `to`. For one thread."""

    def __init__(self, stores: RedisStores, places: StorePlaces, model: str, to: str) -> None:
        self._stores = stores
        self._places = places
        self._model = model
        self._to = to

    def check(self) -> None:
        """Raises `NotFound` for a model or store that nobody knows, `Conflict` for a store in which the model lies already, and
        `StoreUnavailable` for one that cannot take its jobs. Changes nothing.
        """
        if self._to not in self._places.all():
            names = ", ".join(self._places.all())
            raise NotFound(f"the settings name no store {self._to!r}", hint=f"the stores: {names}; [stores.NAME] adds one")
        info, queues = self._info(), self._queues()
        self._refuse_stage()
        if queues.step(self._to, info.partitions) is MoveStep.DRAIN and not queues.leaving:
            raise Conflict(f"{self._model} lies in the store {self._to!r} already, with all of its jobs")
        ours = self._identity(self._to)
        for store in {*queues.stores.values()} - {self._to}:
            if store in self._places.all() and self._identity(store) == ours:
                raise Conflict(f"{store!r} and {self._to!r} are the same store under two addresses: nothing was moved")

    def _refuse_stage(self) -> None:
        """The job of a stage has the same id whoever submits it, and so it lies in its model's first queue of all."""
        for name, stored in self._stores.stored_models().items():
            versions = stored.info.versions.values() if stored.info is not None else ()
            if any(stage.model == self._model for version in versions if version is not None for stage in version.stages):
                raise Conflict(
                    f"{self._model} is a stage of the pipeline {name}, whose jobs find it where it is: it cannot be moved",
                    hint=f"{name} itself can be moved. For this stage, serve the model under another name, which `models` of "
                    f"[stores.NAME] matches, and load a version of {name} that names it",
                )

    def _identity(self, store: str) -> str:
        """What the store calls itself. Raises `StoreUnavailable` if it cannot take jobs: away, full, read-only, no rights."""
        try:
            with closing(RedisStore(self._places.all()[store].url, name="penstock-move")) as opened:
                if store == self._to:
                    opened.send(Command(("SET", "ps:ping", "1", "PX", 60_000), bool))
                return opened.run(identity(secrets.token_hex(16)))
        except StoreUnavailable as error:
            raise of_store(error, store) from error

    def next_step(self) -> MoveStep:
        return self._queues().step(self._to, self._info().partitions)

    def take(self, step: MoveStep) -> None:
        """Do this step, unless another process has. Raises `StoreUnavailable`, and then it may be taken again."""
        info = self._info()
        if step is MoveStep.PREPARE:
            self._place_all(info)
            self._change(lambda found: found.prepared(self._to, info.partitions, info.held), step)
        elif step is MoveStep.SWITCH:
            self._queues()
            self._stores.finish_move(self._model, info.partitions)

    def left(self) -> int:
        """How many jobs have not ended in the queues that drain. Raises `StoreUnavailable`."""
        stats = [self._stores.stats(queue_of(self._model, number)) for number in self._queues().leaving]
        return sum(one.depth + one.delayed + one.leased for one in stats)

    def _place_all(self, info: ModelInfo) -> None:
        """Note where the model's queues lie now, also those that have had no job yet."""
        for number in range(info.since, max(info.held, info.first + info.partitions)):
            self._stores.place(queue_of(self._model, number))

    def _change(self, change: Callable[[ModelQueues], ModelQueues], step: MoveStep) -> None:
        for _ in range(_TRIES):
            info = self._info()
            found = self._stores.plan.found(self._model)
            if found.queues.step(self._to, info.partitions) is not step:
                return
            if self._stores.run(swap_queues(self._model, found, change(found.queues))):
                return
        raise Conflict(f"the queues of {self._model} are being changed by others all the time; nothing is lost, try again")

    def _queues(self) -> ModelQueues:
        self._stores.learn_places()
        return self._stores.plan.found(self._model).queues

    def _info(self) -> ModelInfo:
        known = self._stores.stored_models()
        found = known.get(self._model)
        if found is None or found.info is None:
            near = difflib.get_close_matches(self._model, known, n=1)
            raise NotFound(
                f"no model {self._model!r} is known",
                hint=f"did you mean {near[0]}?" if near else "correct the name; GET /v1/models lists them",
            )
        return found.info
