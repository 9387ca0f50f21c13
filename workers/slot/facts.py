"""What a slot reports of itself: its place, its state and times, and the inputs and outputs of its version. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.model_spec import LearnedCalls, ModelSpec, SlotInfo, VersionInfo, WarmOrigin
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import BatchDone, Ready
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.batcher import Batcher
from penstock.workers.slot.child.slot_child import SlotChild
from penstock.workers.slot.latency import Latency


class SlotFacts:
    """What the child's first word and the batches that it ran have shown. Other threads may read it at any time."""

    def __init__(self, spec: ModelSpec, pin: Pin, child: SlotChild) -> None:
        self._spec, self._pin, self._child = spec, pin, child
        self.latency = Latency()
        self.learned: LearnedCalls | None = None
        self.policy = spec.policy
        self.version: VersionInfo | None = None
        self._warm = Ready(load_s=0.0)

    @property
    def kind(self) -> str:
        """What the times hold for, as one text: version, kind of device, runtime, threads."""
        device = self._pin.device_name or self._pin.device.partition(":")[0]
        return " | ".join((self._spec.version, device, self._child.provider, str(self._pin.threads)))

    def on_ready(self, ready: Ready, *, declared: Collection[str], remembered: Callable[[str], Mapping[int, float]]) -> None:
        """The child has loaded its model. `declared`: the names of the policy's settings that the model may choose itself.
        `remembered`: the times that earlier slots of a kind have learned.
        """
        self._warm = ready
        if not self.latency.largest:
            self.latency.remember(remembered(self.kind))
        if ready.warm_origin is WarmOrigin.SAMPLE:
            for run in ready.warm:
                self.latency.observe(run.size, run.run_s)
        self.version = version_info(ready, source=self._child.source)
        wishes = {"max_batch_size": ready.max_batch_size, "max_wait_s": ready.max_wait_s}
        granted: dict[str, Any] = {name: wish for name, wish in wishes.items() if wish is not None and name in declared}
        self.policy = replace(self._spec.policy, **granted)

    def learn(self, batch: Batch, done: BatchDone, batcher: Batcher) -> None:
        """A batch has run: tell the batcher its time, and whether it fitted into memory."""
        self.learned = done.learned or self.learned
        if done.cap is not None:
            batcher.cap(done.cap)
        elif not batch.profile_dir and not any(job.call for job in batch.jobs):
            # Explaining and profiling take many times as long as predicting, so their times are not learned.
            feed_s = done.began_at - batch.given_at if batch.fresh else None
            batcher.on_ran(batch.size, done.inference_s, feed_s=feed_s, wish=done.wish)

    def info(self) -> SlotInfo:
        """The slot's place, state and times, as it is announced."""
        spec, pin, child, warm = self._spec, self._pin, self._child, self._warm
        return SlotInfo(
            model=spec.name,
            version=spec.version,
            state=child.state,
            device=pin.device,
            pid=child.pid,
            cores=pin.cores,
            provider=child.provider,
            latency_s=self.latency.table(),
            load_s=child.load_s,
            start_s=child.start_s,
            error=child.error,
            restarts=child.restarts.total,
            first_call_s={run.size: run.first_s for run in warm.warm},
            warm_origin=warm.warm_origin,
            warm_note=warm.warm_note,
            threads=pin.threads,
            node=pin.node,
            placement=pin.placement,
            device_name=pin.device_name,
            device_uuid=pin.uuid,
            calls=self.learned,
            at_once=warm.at_once,
        )


def version_info(ready: Ready, *, source: str) -> VersionInfo:
    """`source`: where a model that was fetched came from."""
    return VersionInfo(*ready.schemas, ready.accepts, ready.description, source, ready.streams, ready.answers, ready.stages)
