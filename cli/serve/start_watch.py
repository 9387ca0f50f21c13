"""What `penstock up` reads from the store: whether a slow start is hopeless, and which jobs still run at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from penstock.cli.exits import StartError
from penstock.errors import StoreUnavailable
from penstock.model_spec import SlotInfo, WorkerInfo
from penstock.settings.store_url import StoreRequirement
from penstock.settings.tables import Settings, StoreSettings
from penstock.words import plural

_FIRST_LOOK_S = 1.0
_EVERY_S = 0.5
_TRIES = 2


@dataclass(slots=True)
class LoadFailures:
    """The load errors of the declared `models`, from successive announcements of workers. Pure."""

    models: Sequence[str]
    # By slot: the number of its process's ends when its error was first seen, and the error.
    _first: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)

    def hopeless(self, workers: Iterable[WorkerInfo]) -> dict[str, str]:
        """The load error by model, once every slot of every model has failed twice with the same error; else empty."""
        slots = [((worker.name, at), slot) for worker in workers for at, slot in enumerate(worker.slots)]
        errors = {slot.model: slot.error for key, slot in slots if slot.model in self.models and self._is_hopeless(key, slot)}
        going_on = any(slot.model in self.models and not self._is_hopeless(key, slot) for key, slot in slots)
        return {} if going_on or set(errors) != set(self.models) else errors

    def given_up(self, workers: Iterable[WorkerInfo]) -> dict[str, str] | None:
        """The load errors of the models whose slots have all failed twice with the same error, once every other model is
        served; None while a model may still become ready.
        """
        slots = [((worker.name, at), slot) for worker in workers for at, slot in enumerate(worker.slots)]
        errors = {slot.model: slot.error for key, slot in slots if slot.model in self.models and self._is_hopeless(key, slot)}
        served = {slot.model for _, slot in slots if slot.state == "ready"}
        return errors if set(self.models) <= served | errors.keys() else None

    def _is_hopeless(self, key: tuple[str, int], slot: SlotInfo) -> bool:
        if slot.state != "failed":
            self._first.pop(key, None)
            return False
        ends, error = self._first.setdefault(key, (slot.restarts, slot.error))
        if error != slot.error:
            self._first[key] = (slot.restarts, slot.error)
            return False
        return slot.restarts >= max(_TRIES, ends + 1)


class StartWatch:
    """Call `check` often once the gateway answers. It reads at most twice a second, and first after a second: most models are
    ready by then, and this process needs no Redis client.

    `keep_trying`: a model that cannot be loaded does not end the start. Once all others are served, `unserved` has its error.
    """

    def __init__(self, redis_url: str, models: Sequence[str], *, keep_trying: bool) -> None:
        self._redis_url, self._keep_trying = redis_url, keep_trying
        self._failures = LoadFailures(models)
        self._look_at: float | None = None
        self.unserved: dict[str, str] | None = None

    def check(self) -> None:
        """Raises `StartError` if waiting longer is useless."""
        now = time.monotonic()
        if self._look_at is None:
            self._look_at = now + _FIRST_LOOK_S
        if now < self._look_at:
            return
        self._look_at = now + _EVERY_S
        check_login(self._redis_url)
        if self._keep_trying:
            self.unserved = self._failures.given_up(_workers(self._redis_url))
        elif errors := self._failures.hopeless(_workers(self._redis_url)):
            raise StartError(
                "; ".join(f"{model} cannot be loaded, twice for the same reason: {why}" for model, why in errors.items()),
                hint="correct it and start again; with --keep-trying, `penstock up` keeps trying",
            )


def check_login(redis_url: str) -> str:
    """Why the store cannot be reached; empty if it answers. Raises `StartError` if it refuses the login or has no functions."""
    # Imported here, because most starts need no Redis client.
    from redis.exceptions import NoPermissionError, RedisError

    from penstock.broker.store.connection import connect
    from penstock.broker.store.links.refusals import LoginRefused, NoFunctions, store_error

    with closing(connect(redis_url, name="penstock-start")) as client:
        try:
            client.ping()
            client.function_list(library="penstock")
        except NoPermissionError:
            return ""  # a user of ours, which need not list functions
        except (RedisError, OSError) as error:
            fault = store_error(error)
            if isinstance(fault, LoginRefused | NoFunctions):
                raise StartError(fault.message, hint=fault.hint) from error
            return str(fault)
    return ""


def check_store(redis_url: str, settings: StoreSettings, say: Callable[[str], None]) -> None:
    """Raises `StartError` if the store answers and lacks what the settings ask of it; `say` gets a sentence for each other
    fault.
    """
    from redis import RedisError

    from penstock.broker.store.connection import connect_all, is_cluster
    from penstock.cli.serve.store_faults import fsync_of, info_of, refusal_to_wait, sentinel_faults, store_faults

    replicated = settings.durability == "replicated"
    said: dict[str, None] = {}
    try:
        for node, opened in connect_all(redis_url, name="penstock-start").items():
            with closing(opened) as client:
                info, fsync = info_of(client), fsync_of(client)
                refusal = refusal_to_wait(client, info) if replicated else ""
            by_sentinels = sentinel_faults(redis_url) if replicated else []
            for fault in by_sentinels + store_faults(info, fsync, as_cluster=is_cluster(redis_url), cannot_wait=refusal):
                if fault.is_refused(settings.require):
                    where = f"the job store, node {node}," if node else "the job store"
                    raise StartError(f"{where} may not be used: {fault.text}", hint=fault.hint)
                # A server that does not report its syncs is not a fault.
                if fsync or fault.since != StoreRequirement.FSYNC:
                    said[f"the job store: {fault.text}; {fault.hint}"] = None
    except (RedisError, OSError):
        return  # unreachable, or a user without this right: `penstock doctor` reports it
    for line in said:
        say(line)


def running_jobs(settings: Settings, redis_url: str) -> int | None:
    """The number of running jobs in the store at `redis_url`; None if it is unreachable."""
    from penstock.broker.partitions import queues_of_model
    from penstock.broker.store.sync import RedisStore

    models = settings.served_names
    try:
        with closing(RedisStore(redis_url, name="penstock-end")) as store:
            known = [info for info in store.models() if info.name in models]
            return sum(store.stats(queue).leased for info in known for queue in queues_of_model(info))
    except StoreUnavailable:
        return None


def farewell(running: int | None) -> str:
    """The message after the first Ctrl-C."""
    if running == 0:
        return "ending; no job is running"
    what = "running jobs" if running is None else plural(running, "job")
    return f"finishing {what}; Ctrl-C again stops at once, and what runs goes back to the queue"


def _workers(redis_url: str) -> list[WorkerInfo]:
    from penstock.broker.store.sync import RedisStore

    try:
        with closing(RedisStore(redis_url, name="penstock-start")) as store:
            return store.workers()
    except StoreUnavailable:
        return []
