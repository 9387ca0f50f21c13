"""What a slot tells of itself: where it lies and how it fares, and what its version takes and gives. Pure."""

from __future__ import annotations

from penstock.model_spec import LearnedCalls, ModelSpec, SlotInfo, VersionInfo
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import Ready
from penstock.workers.slot.child.slot_child import SlotChild
from penstock.workers.slot.latency import Latency


def slot_info(
    spec: ModelSpec, pin: Pin, child: SlotChild, *, warm: Ready, latency: Latency, learned: LearnedCalls | None
) -> SlotInfo:
    """`warm`: what the child said when it had loaded its model."""
    return SlotInfo(
        model=spec.name,
        version=spec.version,
        state=child.state,
        device=pin.device,
        pid=child.pid,
        cores=pin.cores,
        provider=child.provider,
        latency_s=latency.table(),
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
        calls=learned,
        at_once=warm.at_once,
    )


def version_info(spec: ModelSpec, ready: Ready, *, source: str) -> VersionInfo:
    """`source`: where a model that was fetched came from."""
    stages = spec.pipeline.stages if spec.pipeline else ()
    return VersionInfo(*ready.schemas, ready.accepts, ready.description, source, ready.streams, ready.answers, stages)
