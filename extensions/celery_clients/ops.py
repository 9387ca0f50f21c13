"""The store's operations for tasks of stock Celery clients, each described once. Pure.

The door is the queue of clients that name no queue. Its keys have `*` in place of a model's name, which no model can have.
"""

# D81: docs/design/store.md

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.broker.records import NewJob
from penstock.broker.server.users import CONNECTED
from penstock.broker.store.ops import APP_QUEUE, Command, Operation, digest, prefix, priority_list, queue_name
from penstock.broker.store.positions import Arg
from penstock.job import SERIAL_CHARS, JobId, job_in, parse_job_id

# The name of the word that a job's submit has for these functions.
WORD = "celery_clients"
DOOR_QUEUE, DOOR = APP_QUEUE, "*"
INVALID_MESSAGE, EXPIRED, CANCELLED = "invalid_message", "expired", "cancelled"
_ARRIVED_KEY = f"{prefix(DOOR)}arrived"
# Each has a list beside the queue's. A client may write to any of the ten; by default to 0, 3, 6 and 9.
PRIORITIES = range(10)
# These lists also hold the tickets of jobs, so claims draw from them.
_TICKETED = (0, 6, 9)

# A client of Celery may put messages at the door and nowhere else, read results by their tasks' ids, forget them, and use
# remote control. Each part in parentheses stands alone, so that no command works on the keys of another.
CLIENT_RULES = " ".join(
    [
        f"resetchannels -@all {' '.join(f'+{command}' for command in CONNECTED.split())} +multi +exec +discard",
        "(-@all +lpush +llen +exists %RW~penstock %RW~penstock??[0-9])",
        "(-@all +sadd +smembers +srem +exists ~_kombu.binding.* ~_kombu.binding_permanent.*)",
        "(-@all +lpush +brpop +llen +exists +del ~*.reply.celery.pidbox*)",
        "(-@all +get +mget +del ~celery-task-meta-*)",
        "(-@all +subscribe +unsubscribe &celery-task-meta-*)",
        "(-@all +publish &/0.celery.pidbox)",
    ]
)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message that does not become a job. `celery_id` is empty if even the id could not be read. With the code `expired` or
    `cancelled` its task is revoked. `chain` are the tasks that end with it.
    """

    message: bytes
    celery_id: str
    reason: str
    code: str = INVALID_MESSAGE
    chain: tuple[str, ...] = ()


class AnsweredTask(NamedTuple):
    """A job's Celery task, empty if its result is ignored; the tasks that fail with it; what its end sends, if anything."""

    own: str
    chain: tuple[str, ...]
    follow_ups: str


class Sent(NamedTuple):
    """A text for the entry of a task, or for the list of a queue."""

    to: Literal["task", "queue"]
    name: str
    text: bytes


def word_of(tasks: str, message: bytes = b"") -> dict[str, bytes]:
    """The word of a new job: its tasks, as in its record, and the exact message that it replaces. Storing the job removes the
    message.
    """
    kept = tasks.encode()
    return {WORD: b"%d:%b%b" % (len(kept), kept, message)}


def read_word(word: bytes) -> tuple[str, bytes]:
    length, _, rest = word.partition(b":")
    return rest[: int(length)].decode(), rest[int(length) :]


def refused(job: NewJob, reason: str) -> Rejected:
    """A message whose job the store does not take."""
    word = job.words[WORD]
    assert isinstance(word, bytes)
    tasks, message = read_word(word)
    return Rejected(message, _answered_task(tasks.encode()).own, reason)


def door_lists() -> list[str]:
    """The lists with messages to the door. The first one holds those that a worker took but has not read yet."""
    return [_ARRIVED_KEY, *(priority_list(DOOR_QUEUE, priority) for priority in PRIORITIES)]


def queue_lists(queue: str) -> list[str]:
    """The lists of one queue with messages but no tickets: the queue's other priorities, and its name without braces."""
    own, plain = queue_name(queue), f"{DOOR_QUEUE}.{queue}"
    others = [priority_list(own, priority) for priority in PRIORITIES if priority not in _TICKETED]
    return [*others, *(priority_list(plain, priority) for priority in PRIORITIES)]


def await_message(wait_s: float) -> Command[bool]:
    """Whether a message came to the door within this time; it is then the first of those to be drawn."""
    return Command(("BLMOVE", DOOR_QUEUE, _ARRIVED_KEY, "RIGHT", "LEFT", str(wait_s)), bool)


def draw_door() -> Operation[list[bytes]]:
    """Messages at the door. Each is handed out again after a while, unless it is passed on or rejected."""
    return Operation("draw_messages", prefix(DOOR), ["1", *door_lists()], list)


def draw_queue(queue: str) -> Operation[None]:
    """Take the messages to one queue out of their lists; its claims hand them out."""
    return Operation("draw_messages", prefix(queue), ["", *queue_lists(queue)], lambda _: None)


def pass_messages(messages: Sequence[tuple[str, bytes]]) -> Operation[None]:
    """Give messages of the door to the models that stand beside them."""
    return Operation("pass_messages", prefix(DOOR), [part for one in messages for part in one], lambda _: None)


def reject_foreign(queue: str, rejected: Rejected) -> Operation[None]:
    """Answer a message that does not become a job, and forget it."""
    tasks = rejected.celery_id + followed_by(rejected.chain) if rejected.celery_id else ""
    args: list[Arg] = [rejected.message, tasks, rejected.code, rejected.reason]
    return Operation("reject_foreign", prefix(queue), args, lambda _: None)


def due_answers(limit: int) -> Operation[list[JobId]]:
    """Ended jobs whose tasks the caller must answer."""
    return Operation("due_answers", prefix(DOOR), [limit], lambda reply: [parse_job_id(text.decode()) for text in reply])


def answer(job: JobId, sent: Sequence[Sent]) -> Operation[str]:
    """Write these answers and send these messages, unless another worker has.

    Returns the list that cannot be written to, if there is one: then nothing was sent.
    """
    return Operation("answer", prefix(DOOR), [str(job), *(part for one in sent for part in one)], lambda reply: reply.decode())


def may_send(list_name: str) -> Operation[bool]:
    """Whether the list of a queue can be written to by this store's user."""
    return Operation("may_send", prefix(DOOR), [list_name], bool)


def followed_by(chain: Sequence[str], follow_ups: str = "") -> str:
    """What follows the task in a record: the ids, which contain neither a comma nor a line feed, then what is sent."""
    ids = "".join(f",{id}" for id in chain)
    return f"{ids}\n{follow_ups}" if follow_ups else ids


def task_of(job: JobId) -> Command[AnsweredTask]:
    """The task that the job answers; empty if it answers none."""
    return Command(("HGET", f"{prefix(job.queue)}job:{job.serial}", "celery"), _answered_task)


def _answered_task(reply: bytes | None) -> AnsweredTask:
    tasks, _, follow_ups = (reply or b"").decode().partition("\n")
    own, *chain = tasks.split(",")
    return AnsweredTask(own, tuple(chain), follow_ups)


def job_of_task(queue: str, task: str) -> Command[JobId | None]:
    name = f"{prefix(queue)}idem:{digest('', task_key(task))}"
    return Command(("GET", name), lambda reply: job_in(reply[:SERIAL_CHARS].decode(), queue) if reply else None)


def task_key(task: str) -> str:
    """The idempotency key of the job that answers a task: a message that comes twice makes one job."""
    return f"celery:{task}"
