"""What was learned of a version's slots, for the time when it has none: their start time, speed and memory.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.broker.backlog import capacity_of
from penstock.broker.store.registry import KeptTimes
from penstock.extensions.autoscaling.worker.room import Key
from penstock.model_spec import SlotInfo


@dataclass(frozen=True, slots=True)
class LearnedSlot:
    """Measurements of one slot; 0 or empty if not known."""

    start_s: float = 0.0
    memory_bytes: int = 0
    latency_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Jobs per second at the largest batches."""
        return capacity_of([SlotInfo("", "", "ready", latency_s=dict(self.latency_s))]).full_per_s


class LearnedSlots:
    """Measurements by version. What a slot shows now overrides what was kept."""

    def __init__(self) -> None:
        self._known: dict[Key, LearnedSlot] = {}

    def of(self, key: Key) -> LearnedSlot:
        return self._known.get(key, LearnedSlot())

    def recall(self, model: str, kept: Mapping[str, KeptTimes]) -> None:
        """Take over what earlier workers kept, the latest of each version. `kept`: by version, device, runtime and threads."""
        for kind, times in sorted(kept.items(), key=lambda item: item[1].at):
            key = (model, kind.partition(" | ")[0])
            self._known[key] = LearnedSlot(times.start_s, times.memory_bytes, times.run_s)

    def note(self, slots: Iterable[SlotInfo], memory: Mapping[Key, int]) -> None:
        """`memory`: from `memory_of`."""
        for slot in slots:
            if slot.state != "ready":
                continue
            key = (slot.model, slot.version)
            known = self.of(key)
            self._known[key] = replace(
                known,
                start_s=slot.start_s or known.start_s,
                memory_bytes=memory.get(key, 0) or known.memory_bytes,
                latency_s=slot.latency_s or known.latency_s,
            )


def memory_of(slots: Sequence[SlotInfo]) -> dict[Key, int]:
    """What one ready slot of each version takes on its device, as its worker measured it.

    On the CPU it is the resident memory of the largest slot. The used memory of a GPU cannot be split by version, so it counts
    only where all slots on the GPU are of one version.
    """
    bytes_by_key: dict[Key, int] = {}
    by_device: dict[str, list[SlotInfo]] = {}
    for slot in slots:
        by_device.setdefault(slot.device_uuid, []).append(slot)
    for uuid, there in by_device.items():
        keys = {(slot.model, slot.version) for slot in there}
        if not uuid:
            for slot in there:
                key = (slot.model, slot.version)
                bytes_by_key[key] = max(bytes_by_key.get(key, 0), slot.memory_bytes if slot.state == "ready" else 0)
        elif len(keys) == 1 and all(slot.state == "ready" for slot in there):
            used = max((slot.device_use.used_bytes for slot in there if slot.device_use is not None), default=0)
            [key] = keys
            bytes_by_key[key] = max(bytes_by_key.get(key, 0), used // len(there))
    return {key: size for key, size in bytes_by_key.items() if size}
