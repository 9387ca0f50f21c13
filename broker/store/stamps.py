"""Short texts in which a record keeps its batch and its attempts: written and read here. Pure."""

from __future__ import annotations

from functools import lru_cache

from penstock.broker.records import BatchStamp
from penstock.job import Attempt, BatchRecord, JobState, LeftOut

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SHORT = {"idle": "i", "full": "f", "wait": "w", "deadline": "d", "bucket": "b", "drain": "r", "solo": "s", "bulk": "k"}
_LONG = {short: reason for reason, short in _SHORT.items()}


def stamp_text(stamp: BatchStamp) -> str:
    """Short, because a hash field over 64 bytes would cost the record its compact form. `finish` adds each job's place."""
    before = (stamp.preprocess_s, stamp.inference_s, stamp.postprocess_s)
    waits = (stamp.batch_wait_s, stamp.decode_s, stamp.device_wait_s)
    times = "|".join(_base36(round(seconds * 1e6)) for seconds in before + waits)
    return f"{stamp.id}|{stamp.size}|{_SHORT.get(stamp.reason, stamp.reason)}|{times}"


def parse_stamp(text: str, worker: str = "") -> BatchRecord | None:
    if not text:
        return None
    batch, _, place = text.rpartition("|")
    name, size, reason, before, during, after, waited, decoded, queued = _of_all(batch)
    return BatchRecord(name, size, reason, before, during, after, worker, waited, decoded, queued, int(place))


@lru_cache(maxsize=64)
def _of_all(batch: str) -> tuple[str, int, str, float, float, float, float, float, float]:
    """The part of a stamp that all jobs of a batch share. Their ends are read together, so it is parsed once."""
    name, size, reason, *times = batch.split("|")
    before, during, after, waited, decoded, queued = (int(time, 36) / 1e6 for time in times)
    return name, int(size), _LONG.get(reason, reason), before, during, after, waited, decoded, queued


def token_parts(token: str) -> tuple[int, str, str]:
    """Epoch, worker and nonce; the nonce is the id of the batch that the job was claimed with."""
    epoch, _, rest = token.partition(":")
    worker, _, nonce = rest.rpartition(":")
    return int(epoch or 0), worker, nonce


def all_attempts(past: str, token: str, state: JobState, *, started: float, finished: float | None) -> tuple[Attempt, ...]:
    """The attempts noted when they ended, followed by the one that is under way or that ended the job, if any."""
    noted = tuple(_noted(*entry.rsplit(",", 4)) for entry in past.split(";")) if past else ()
    number, worker, batch = token_parts(token)
    if not token or (noted and noted[-1].number >= number):
        return noted
    return (*noted, Attempt(number, worker, batch, started, finished, state.public if state.final else ""))


def queued_behind(terms: str) -> int:
    """How many jobs stood before this one. `terms` holds its most attempts and most crashes, and this number if it is not 0."""
    _, _, *behind = terms.split(",")
    return int(behind[0]) if behind else 0


def left_out(text: str) -> LeftOut:
    if not text:
        return LeftOut()
    count, spent, delays = (int(part) for part in text.split(","))
    return LeftOut(count, spent / 1000, delays / 1000)


def _noted(token: str, started: str, ended: str, how: str, delay: str) -> Attempt:
    number, worker, batch = token_parts(token)
    return Attempt(number, worker, batch, int(started) / 1000, int(ended) / 1000, how, int(delay) / 1000)


def _base36(number: int) -> str:
    digits = ""
    while number >= 36:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return _DIGITS[max(0, number)] + digits
