"""Why a job was slow: its record divided into stages that add up to its whole time (D27). Pure.

Moments are the store's, in milliseconds; the stages of a batch are durations that its worker measured. The rest is
`batch_wait`, from the claim until the batch begins, and `store`, after its last stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.broker.store.replies import SHORT_REASONS
from penstock.job import Attempt, BatchRecord, Job, JobState
from penstock.model_spec import SlotLocation
from penstock.words import duration, plural

# D27: docs/design/gateway.md
# In order of time; while an attempt is under way, `run` stands for everything from batch_wait on.
STAGES = (
    "queue", "delay", "lost", "batch_wait", "decode", "preprocess", "device_wait", "inference", "postprocess", "store", "run",
)  # fmt: skip
_UNSETTLED = frozenset({"released", "retried", "crashed", "worker_lost"})
_ENDS = {"released": "given back", "retried": "to be tried again", "crashed": "crashed", "worker_lost": "worker lost"}
SOLO = "solo"


@dataclass(frozen=True, slots=True)
class TimelineStage:
    """`share` is the stage's part of the whole time, 0 to 1; `note` may add details."""

    name: str
    seconds: float
    share: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """`location`: where the last attempt ran, if known; `workers`: by slot, the names of the workers that claimed the job.

    `slowest` is a stage's name, `summary` a sentence about it. `total_s` counts from the submit to the end, or to now.
    """

    job: Job
    total_s: float
    stages: tuple[TimelineStage, ...]
    location: SlotLocation | None
    workers: Mapping[str, str]
    slowest: str
    summary: str


def timeline(job: Job, *, now: float, locations: Mapping[str, SlotLocation]) -> Timeline:
    """`now` in Unix seconds ends the timeline of an open job; `locations` has the slots that the attempts name."""
    end = job.finished_at if job.finished_at is not None else max([now, job.created_at, *_moments(job)])
    total_s = max(0.0, end - job.created_at)
    spent = _fitted(_spent(job, end), total_s)
    stages = tuple(_stage(job, name, spent[name], total_s) for name in STAGES if name in spent)
    slowest = max(stages, key=lambda stage: stage.seconds)
    last = job.tries[-1] if job.tries else None
    location = locations.get(last.worker) if last is not None else None
    workers = {slot: known.worker for slot, known in locations.items()}
    return Timeline(job, total_s, stages, location, workers, slowest.name, _summary(job, slowest))


def _moments(job: Job) -> Iterable[float]:
    return (moment for tried in job.tries for moment in (tried.claimed_at, tried.ended_at or 0.0))


def _spent(job: Job, end: float) -> dict[str, float]:
    """Seconds by stage, without the queue."""
    lost = [tried for tried in job.tries if _in_vain(job, tried)]
    delays_s = _start_delay(job, end) + _delays(job, end) + job.left_out.delay_s
    spent = {"lost": sum(map(_length, lost)) + job.left_out.spent_s, "delay": delays_s}
    spent = {name: seconds for name, seconds in spent.items() if seconds > 0.0}
    last = job.tries[-1] if job.tries else None
    if last is not None and last.ended_at is None:
        spent["run"] = max(0.0, end - last.claimed_at)
    elif last is not None and job.batch is not None and last not in lost:
        spent |= _batch_stages(job.batch, _length(last))
    return spent


def _in_vain(job: Job, tried: Attempt) -> bool:
    """Whether an attempt was lost: it did not end the job, or its output was dropped and its stages are unknown."""
    return tried.end in _UNSETTLED or (tried.ended_at is not None and job.batch is None)


def _length(tried: Attempt) -> float:
    return max(0.0, tried.ended_at - tried.claimed_at) if tried.ended_at is not None else 0.0


def _start_delay(job: Job, end: float) -> float:
    """Seconds that a job was delayed before it was queued for the first time."""
    return max(0.0, min(job.not_before, end) - job.created_at) if job.not_before is not None else 0.0


def _delays(job: Job, end: float) -> float:
    """Seconds between an attempt and the earliest moment of the next one; the time after that moment is `queue`."""
    following = [*(tried.claimed_at for tried in job.tries[1:]), end]
    ended = ((tried, then) for tried, then in zip(job.tries, following, strict=False) if tried.ended_at is not None)
    return sum(max(0.0, min(tried.delay_s, then - tried.ended_at)) for tried, then in ended if tried.ended_at is not None)


def _batch_stages(batch: BatchRecord, length_s: float) -> dict[str, float]:
    """The stages of the batch, with the rest of the attempt as `store`.

    Worker and store have different clocks, and the store's counts milliseconds: measured stages may add up to more than the
    attempt, and are then scaled down to it.
    """
    stages = {
        "batch_wait": batch.batch_wait_s,
        "decode": batch.decode_s,
        "preprocess": batch.preprocess_s,
        "device_wait": batch.device_wait_s,
        "inference": batch.inference_s,
        "postprocess": batch.postprocess_s,
    }
    return {**_scaled(stages, length_s), "store": max(0.0, length_s - sum(stages.values()))}


def _fitted(spent: dict[str, float], total_s: float) -> dict[str, float]:
    """The stages with `queue` as the rest, so that they add up to the whole even if the store's clock was set back."""
    fitted = _scaled(spent, total_s)
    return {"queue": max(0.0, total_s - sum(fitted.values())), **fitted}


def _scaled(stages: dict[str, float], most_s: float) -> dict[str, float]:
    needed = sum(stages.values())
    if needed <= most_s:
        return stages
    return {name: seconds * most_s / needed for name, seconds in stages.items()}


def _stage(job: Job, name: str, seconds: float, total_s: float) -> TimelineStage:
    return TimelineStage(name, seconds, seconds / total_s if total_s > 0.0 else 0.0, _note(job, name))


def _note(job: Job, name: str) -> str:
    if name == "queue" and job.queued_behind:
        return f"behind {plural(job.queued_behind, 'job')}"
    if name == "lost":
        return _lost_note(job)
    if name == "delay" and job.not_before is not None:
        return "until its start, and between attempts" if len(job.tries) > 1 else "until its start"
    batch = job.batch
    if name == "inference" and batch is not None:
        return _batch_note(batch)
    return ""


def _is_driven(batch: BatchRecord) -> bool:
    """Whether an extension ran the job: it gives a reason of its own, and the time is spent in jobs that it submitted."""
    return bool(batch.reason) and batch.reason not in SHORT_REASONS


def _batch_note(batch: BatchRecord) -> str:
    if _is_driven(batch):
        return "all stages, which have jobs of their own"
    if batch.reason == SOLO:
        return "alone, as a suspect"
    where = f"{batch.place} of {batch.size}" if batch.size > 1 and batch.place else "alone"
    return f"{where}, released: {batch.reason}" if batch.reason else where


def _lost_note(job: Job) -> str:
    counts = Counter(_ENDS.get(tried.end, "output dropped") for tried in job.tries if _in_vain(job, tried))
    words = [f"{count} {end}" for end, count in counts.items()]
    return ", ".join([*words, *([f"{job.left_out.count} more"] if job.left_out.count else [])])


def _summary(job: Job, slowest: TimelineStage) -> str:
    took = duration(slowest.seconds)
    if slowest.name == "queue":
        return _queue_summary(job, took)
    if slowest.name == "lost":
        return f"lost {took} in attempts that brought no result ({slowest.note})"
    if slowest.name == "delay":
        return f"waited {took} {'for its start' if job.not_before else 'between attempts, as retries do'}"
    if slowest.name == "run":
        return f"has been running for {took}"
    words = {
        "batch_wait": f"waited {took} in its worker until its batch was begun",
        "decode": f"took {took} to read its batch's inputs",
        "preprocess": f"took {took} in preprocess",
        "device_wait": f"waited {took} for the device, which ran the batch before",
        "inference": f"ran {took} {_company(job)}",
        "postprocess": f"took {took} in postprocess",
        "store": f"took {took} to be stored after its run",
    }
    return words[slowest.name]


def _queue_summary(job: Job, took: str) -> str:
    behind = f" behind {plural(job.queued_behind, 'job')}" if job.queued_behind else " for a worker to take it"
    if not job.state.final and not (job.tries and job.tries[-1].ended_at is None):
        return f"has waited {took}{behind}"
    until = {JobState.EXPIRED: ", until its deadline passed", JobState.CANCELLED: ", until it was cancelled"}
    return f"waited {took}{behind}{until.get(job.state, '') if not _ran(job) else ''}"


def _ran(job: Job) -> bool:
    return bool(job.tries) and job.tries[-1].end not in _UNSETTLED


def _company(job: Job) -> str:
    batch = job.batch
    if batch is not None and _is_driven(batch):
        return "through its stages"
    if batch is not None and batch.reason == SOLO:
        crashes = sum(tried.end == "crashed" for tried in job.tries)
        losses = sum(tried.end == "worker_lost" for tried in job.tries)
        after = [plural(crashes, "crash", "crashes")] if crashes else []
        after += [plural(losses, "lost worker")] if losses else []
        return f"alone after {' and '.join(after)}" if after else "alone"
    return f"on the device, in a batch of {batch.size}" if batch is not None and batch.size > 1 else "on the device, alone"
