"""The store's operations for tasks of stock Celery clients, each described once. Pure.

The door is the queue of clients who name none. `*` stands in the place of a model in its keys, and no model is called that.
"""

# D81: docs/design/store.md

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.broker.store.ops import Command, Operation, digest, prefix, queue_name
from penstock.job import SERIAL_CHARS, JobId, parse_job_id

DOOR_QUEUE, DOOR = "penstock", "*"
INVALID_MESSAGE, EXPIRED, CANCELLED = "invalid_message", "expired", "cancelled"
_ARRIVED_KEY = f"{prefix(DOOR)}arrived"
# Kombu's own: each priority has a list beside the queue's. A client may write to any of the ten; by default to 0, 3, 6 and 9.
PRIORITY_SEPARATOR = "\x06\x16"
PRIORITIES = range(10)
# In these the tickets of jobs lie as well, so that claims draw from them.
_TICKETED = (0, 6, 9)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message that does not become a job. `celery_id` is empty if even the id could not be read. With the code `expired` or
    `cancelled` its task is revoked.
    """

    message: bytes
    celery_id: str
    reason: str
    code: str = INVALID_MESSAGE


def priority_list(queue: str, priority: int) -> str:
    return f"{queue}{PRIORITY_SEPARATOR}{priority}" if priority else queue


def door_lists() -> list[str]:
    """Where messages to the door lie, first those that a worker has taken and not yet looked at."""
    return [_ARRIVED_KEY, *(priority_list(DOOR_QUEUE, priority) for priority in PRIORITIES)]


def model_lists(model: str) -> list[str]:
    """Where messages to one model lie and no tickets: the queue's other priorities, and its name without braces."""
    own, plain = queue_name(model), f"{DOOR_QUEUE}.{model}"
    others = [priority_list(own, priority) for priority in PRIORITIES if priority not in _TICKETED]
    return [*others, *(priority_list(plain, priority) for priority in PRIORITIES)]


def await_message(wait_s: float) -> Command[bool]:
    """Whether a message came to the door within this time; it is then the first of those to be drawn."""
    return Command(("BLMOVE", DOOR_QUEUE, _ARRIVED_KEY, "RIGHT", "LEFT", str(wait_s)), bool)


def draw_door() -> Operation[list[bytes]]:
    """Messages at the door. Each is handed out again after a while, unless it is passed on or rejected."""
    return Operation("draw_messages", prefix(DOOR), ["1", *door_lists()], list)


def draw_model(model: str) -> Operation[None]:
    """Take the messages to one model out of their lists; its claims hand them out."""
    return Operation("draw_messages", prefix(model), ["", *model_lists(model)], lambda _: None)


def pass_messages(messages: Sequence[tuple[str, bytes]]) -> Operation[None]:
    """Give messages of the door to the models that stand beside them."""
    return Operation("pass_messages", prefix(DOOR), [part for one in messages for part in one], lambda _: None)


def reject_foreign(model: str, rejected: Rejected) -> Operation[None]:
    """Answer a message that does not become a job, and forget it."""
    args = [rejected.message, rejected.celery_id, rejected.code, rejected.reason]
    return Operation("reject_foreign", prefix(model), args, lambda _: None)


def due_answers(limit: int) -> Operation[list[JobId]]:
    """Jobs that have ended, and whose tasks the caller is to answer."""
    return Operation("due_answers", prefix(DOOR), [limit], lambda reply: [parse_job_id(text.decode()) for text in reply])


def answer(job: JobId, task: str, text: bytes) -> Operation[None]:
    """Write the answer to a task; empty if nobody wants it."""
    return Operation("answer", prefix(DOOR), [str(job), task, text], lambda _: None)


def task_of(job: JobId) -> Command[bytes]:
    """What the record says of the task that the job answers; empty if there is none."""
    return Command(("HGET", f"{prefix(job.model)}job:{job.serial}", "celery"), lambda reply: reply or b"")


def job_of_task(model: str, task: str) -> Command[JobId | None]:
    name = f"{prefix(model)}idem:{digest('', task_key(task))}"
    return Command(("GET", name), lambda reply: JobId(reply[:SERIAL_CHARS].decode(), model) if reply else None)


def task_key(task: str) -> str:
    """The idempotency key of the job that answers a task: a message that comes twice makes one job."""
    return f"celery:{task}"
