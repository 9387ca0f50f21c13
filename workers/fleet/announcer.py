"""Writes this worker, its models and where its slots run into the registry, which gateways and other workers read."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from penstock.broker.partitions import queues_of_model
from penstock.broker.store import ops
from penstock.broker.store.library import lua_extensions
from penstock.broker.store.registry import StoredModel
from penstock.broker.store.sync import RedisStore
from penstock.model_spec import ModelInfo, ScalingInfo, SlotInfo, VersionInfo, WorkerInfo, info_of_spec
from penstock.settings.worker import WorkerSettings
from penstock.workers.devices.gpus import PyNvml
from penstock.workers.fleet.announce import LocationsDue, announced, differing, merged
from penstock.workers.fleet.forgotten_versions import reopen
from penstock.workers.fleet.versions import ServedVersions
from penstock.workers.slot.slot import Slot
from penstock.workers.telemetry.gauges import SlotMeter
from penstock.workers.telemetry.gpu_meter import GpuMeter
from penstock.workers.telemetry.host_gauges import HostMeter

log = structlog.get_logger(__name__)
SOURCES_DIFFER = "sources_differ"

# An entry may have been changed by hand, which does not change the edition.
READ_EVERY_S = 60.0
# The entry of a worker that died expires after this number of beats.
_ENTRY_BEATS = 5


class Announcer:
    """For the beat's thread. `name` is the worker's Celery name; `wanted` counts the slots that it is to have, and
    `scaling` says more of those that follow their work.
    """

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        versions: ServedVersions,
        *,
        wanted: Callable[[], dict[str, dict[str, int]]],
        scaling: Callable[[], dict[str, dict[str, ScalingInfo]]],
    ) -> None:
        self._name = name
        self._versions = versions
        self._wanted = wanted
        self._scaling = scaling
        self._extensions = tuple(extension.name for extension in lua_extensions())
        self._loads = settings.model_dir is not None
        self._ttl_s = max(1.0, _ENTRY_BEATS * settings.beat_s)
        self._built_at = time.monotonic()
        self._started_at: float | None = None
        self._announced: dict[str, dict[str, VersionInfo]] = {}
        self._locations = LocationsDue(name)
        # The slots as they were announced last, with what they use.
        self.measured: tuple[SlotInfo, ...] = ()
        self._meter, self._slot_meter = HostMeter(), SlotMeter(GpuMeter(PyNvml()))

    def announce(self, store: RedisStore, slots: Sequence[Slot], infos: Iterable[SlotInfo]) -> int:
        """The registry's edition. `infos` are those of the slots, and of versions that have no slot here but should."""
        declared = {name: tuple(info.versions) for name, info in self._versions.infos.items()}
        if self._started_at is None:
            # By the store's clock, because a gateway on another host tells from it how long this worker has been up.
            self._started_at = store.now() - (time.monotonic() - self._built_at)
        self.measured = self._slot_meter.measured(infos)
        worker = WorkerInfo(
            self._name,
            socket.gethostname(),
            os.getpid(),
            self._started_at,
            slots=self.measured,
            declared=declared,
            machine=self._meter.read(),
            wanted=self._wanted(),
            followed=dict(self._versions.marks),
            loads=self._loads,
            scaling=self._scaling(),
            drained=self._versions.is_drained,
            holding=sum(batch.size for slot in slots for batch in slot.active_batches()),
            extensions=self._extensions,
        )
        # The models come first: a reader that sees a ready slot must find the inputs of its version.
        self._announce_models(store, slots)
        edition = store.announce_worker(worker, ttl_s=self._ttl_s)
        self._announce_locations(store, slots)
        return edition

    def _announce_models(self, store: RedisStore, slots: Sequence[Slot]) -> None:
        """At the first beat, and again only after this worker has loaded another version: others announce theirs."""
        for name in {*self._versions.infos, *self._announced, *(slot.spec.name for slot in slots)}:
            ours = [slot for slot in slots if slot.spec.name == name]
            loaded = {slot.spec.version: slot.facts.version for slot in ours if slot.facts.version}
            if not loaded and name not in self._versions.infos:
                self._announced.pop(name, None)
                continue
            if self._announced.get(name) == loaded:
                continue
            known = store.stored_models().get(name, StoredModel())
            # A model that no settings name is as the gateway announced it that had it loaded.
            info = self._versions.infos.get(name) or known.info or info_of_spec(ours[0].spec)
            for version, here, elsewhere in differing(loaded, known.info):
                log.warning(SOURCES_DIFFER, model=name, version=version, here=here, elsewhere=elsewhere)
            # D23: compare-and-set. If another worker wrote the entry meanwhile, the next beat tries again.
            wanted = announced(merged(_with_policy(info, ours), loaded, known.info), known.info)
            queues = queues_of_model(wanted)
            closed = {queue: store.retired(queue) for queue in queues[: wanted.partitions]}
            # D142: before a gateway can place a key by the new number, no queue takes one that was placed by the old one.
            store.run_all([ops.advance(queue, wanted.placing) for queue in queues])
            if store.swap_model(name, known, wanted):
                self._announced[name] = loaded
                reopen(store, closed, {*loaded, ""})

    def _announce_locations(self, store: RedisStore, slots: Sequence[Slot]) -> None:
        now = time.monotonic()
        for location in self._locations.due({slot.name: slot.facts.info() for slot in slots}, now):
            store.announce_location(location)
            self._locations.mark(location, now)


class OtherEntries:
    """What others wrote into the registry: its models and its live workers, read again when its edition changes."""

    def __init__(self) -> None:
        self.models: Sequence[ModelInfo] = ()
        self.workers: Sequence[WorkerInfo] = ()
        self._edition = -1
        self._read_at = float("-inf")

    def follow(self, store: RedisStore, edition: int, now: float) -> None:
        """`now` is by the store's clock. Raises `StoreUnavailable`."""
        if edition == self._edition and 0.0 <= now - self._read_at < READ_EVERY_S:
            return
        self.models, self.workers = store.models(), store.workers()
        self._edition, self._read_at = edition, now


def _with_policy(info: ModelInfo, slots: Iterable[Slot]) -> ModelInfo:
    """The model with the batch policy that its default version runs with here, if it runs here."""
    policy = next((slot.facts.policy for slot in slots if slot.spec.version == info.default_version), None)
    return replace(info, policy=policy or info.policy)
