"""What follows a task of a stock Celery client: the callbacks of `link` and `link_error`, and the rest of a chain. Pure.

They are read when the message becomes a job, so that the sender learns at once if one cannot be sent, and are kept in the job's
record. When the job has ended, they become messages to the queues of Celery's workers, or to penstock's own door.
"""

# D86: docs/design/workers-and-devices.md

from __future__ import annotations

import base64
import itertools
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from penstock.broker.store.ops import priority_list
from penstock.extensions.celery_clients.ops import DOOR_QUEUE, Sent

# Celery's default, where a signature names no queue: the sender's own routes are not part of its message.
CELERY_QUEUE = "celery"
OWN_TASKS = "penstock."
MOST, MOST_BYTES = 100, 64 * 1024
_ID = re.compile(r"\A[^,\n]{1,255}\Z")
# Beyond this a moment has no form as ISO 8601 writes it.
_Seconds = Annotated[float, Meta(ge=-1e9, le=1e9)]
# Keys of Redis that are not queues of tasks: ours, Celery's results, its commands, its events, and kombu's own.
_NO_QUEUE = re.compile(r"ps:|celery-task|_kombu|unacked|celeryev|.*pidbox")
_PRIORITY_STEPS = (9, 6, 3, 0)
_KEPT = ("callbacks", "errbacks", "chain")


class _Options(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What Celery and its users set for a task; a follow-up with another option is refused."""

    task_id: Annotated[str, Meta(pattern=_ID.pattern)] | None = None
    queue: str | None = None
    priority: Annotated[int, Meta(ge=0, le=255)] | None = None
    countdown: _Seconds | None = None
    expires: _Seconds | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    ignore_result: bool | None = None
    reply_to: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group_id: str | None = None
    group_index: int | None = None
    link: Raw = Raw(b"null")
    link_error: Raw = Raw(b"null")


class _Kind(Struct):
    subtask_type: str | None = None


class Signature(Struct, forbid_unknown_fields=True):
    """One of Celery's signatures."""

    task: str
    args: list[Raw] = []
    kwargs: dict[str, Raw] = {}
    options: _Options = msgspec.field(default_factory=_Options)
    subtask_type: str | None = None
    immutable: bool = False

    @property
    def queue(self) -> str:
        return self.options.queue or (DOOR_QUEUE if self.task.startswith(OWN_TASKS) else CELERY_QUEUE)


class FollowUps(Struct, omit_defaults=True):
    """What the end of the task `id` sends; `chain` as Celery keeps it, the next task last."""

    id: str
    root: str
    callbacks: list[Signature] = []
    errbacks: list[Signature] = []
    chain: list[Signature] = []

    def queues(self) -> set[str]:
        """The queues that penstock's workers write to. What follows a later task of the chain is sent by that task's worker."""
        ours = list(itertools.takewhile(lambda one: one.task.startswith(OWN_TASKS), reversed(self.chain)))
        chain = [task for one in self.chain[::-1][: len(ours) + 1] for task in _tasks_of(one)]
        return {one.queue for one in [*self.callbacks, *self.errbacks, *chain]}


# Made while one thread loads this module: D106.
_KIND, _SIGNATURE, _FOLLOW_UPS = msgspec.json.Decoder(_Kind), msgspec.json.Decoder(Signature), msgspec.json.Decoder(FollowUps)


class NotSendable(Exception):
    """The text is the reason that the sender gets."""


def follow_ups(embed: Mapping[str, Raw], *, id: str, root: str) -> FollowUps | None:
    """The follow-ups of the task; None if it has none. Raises `NotSendable`, or what msgspec raises."""
    if bytes(embed.get("chord", b"null")) != b"null":
        raise NotSendable(
            "a model's task cannot be one of a chord, whose parts are counted by scripts that workers may not run;"
            " it can be the chord's body, or send a group and join its results"
        )
    if sum(len(bytes(embed.get(name, b""))) for name in _KEPT) > MOST_BYTES:
        raise NotSendable(f"what follows a task takes at most {MOST_BYTES} bytes")
    chain = [_signature(one) for one in _found(embed, "chain")]
    if any(one.subtask_type for one in chain[1:]):
        raise NotSendable("a group within a chain is a chord, which a model's task cannot be one of")
    follow_up = FollowUps(id, root or id, _plain(embed, "callbacks"), _plain(embed, "errbacks"), chain)
    _check([*follow_up.callbacks, *follow_up.errbacks, *(task for one in chain for task in _tasks_of(one))])
    return follow_up if follow_up.callbacks or follow_up.errbacks or follow_up.chain else None


def _found(embed: Mapping[str, Raw], name: str) -> list[Raw]:
    parts: list[Raw] | None = msgspec.json.decode(embed.get(name, b"null"), type=list[Raw] | None)
    return parts or []


def _signature(text: Raw) -> Signature:
    kind = _KIND.decode(text).subtask_type
    if kind not in (None, "group"):
        raise NotSendable(f"a model's task can be followed by tasks and groups, not by a {kind[:20]}")
    return _SIGNATURE.decode(text)


def _plain(embed: Mapping[str, Raw], name: str) -> list[Signature]:
    return [task for one in _found(embed, name) for task in _tasks_of(_signature(one))]


def _tasks_of(signature: Signature) -> list[Signature]:
    """The tasks of a group, each as a follow-up of its own; a task itself."""
    if signature.subtask_type is None:
        return [signature]
    parts = msgspec.json.decode(signature.kwargs.get("tasks", b"[]"), type=list[Raw])
    return [task for one in parts for task in _tasks_of(_signature(one))]


def _check(tasks: list[Signature]) -> None:
    if len(tasks) > MOST:
        raise NotSendable(f"at most {MOST} tasks may follow a task, not {len(tasks)}")
    for one in tasks:
        if len(one.queue) > 255 or _NO_QUEUE.match(one.queue):
            raise NotSendable(f"{one.queue[:80]!r} is no queue that a follow-up may be sent to")


def ids_of_chain(embed: Any) -> tuple[str, ...]:
    """The tasks that end with this one if it does not succeed: those of its chain, its chord's body. `embed`: any JSON."""
    if not isinstance(embed, dict):
        return ()
    chain = embed.get("chain")
    ids = [id for one in [*(chain if isinstance(chain, list) else ()), embed.get("chord")] for id in _ids(one)]
    return tuple(dict.fromkeys(ids[:MOST]))


def _ids(signature: Any) -> Iterator[str]:
    if not isinstance(signature, dict):
        return
    options, kwargs = signature.get("options"), signature.get("kwargs")
    id = options.get("task_id") if isinstance(options, dict) else None
    if isinstance(id, str) and _ID.fullmatch(id):
        yield id
    if isinstance(kwargs, dict):
        tasks = kwargs.get("tasks")
        for one in [*(tasks if isinstance(tasks, list) else ()), kwargs.get("body")]:
            yield from _ids(one)


class Following(NamedTuple):
    """A message to be sent, and the id of its task."""

    id: str
    message: Sent


def after_success(kept: str, result: bytes, *, now: float) -> list[Following]:
    """What a job with these follow-ups sends, if any. Each task gets the result as its first argument.

    `result`: JSON, as kombu writes it; `now`: Unix seconds.
    """
    sent = _kept(kept)
    following = [_following(one, result, sent, (), now) for one in sent.callbacks]
    if sent.chain:
        *rest, following_one = sent.chain
        following += [_following(one, result, sent, rest, now) for one in _tasks_of(following_one)]
    return following


def after_failure(kept: str, *, now: float) -> list[Following]:
    """As Celery does for tasks whose code it does not have: each task gets the id of the failed one."""
    sent = _kept(kept)
    return [_following(one, msgspec.json.encode(sent.id), sent, (), now) for one in sent.errbacks]


def _kept(text: str) -> FollowUps:
    return _FOLLOW_UPS.decode(text) if text else FollowUps("", "")


def _following(one: Signature, first: bytes, parent: FollowUps, chain: Sequence[Signature], now: float) -> Following:
    id = one.options.task_id or str(uuid.uuid4())
    args = one.args if one.immutable else [Raw(first), *one.args]
    options = one.options
    embed = {"callbacks": options.link, "errbacks": options.link_error, "chain": list(chain) or None, "chord": None}
    message = {
        "body": base64.b64encode(msgspec.json.encode([args, one.kwargs, embed])).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": _headers(one, id, parent, now),
        "properties": _properties(one, id),
    }
    priority = next(step for step in _PRIORITY_STEPS if step <= max(0, options.priority or 0))
    return Following(id, Sent("queue", priority_list(one.queue, priority), msgspec.json.encode(message)))


def _headers(one: Signature, id: str, parent: FollowUps, now: float) -> dict[str, object]:
    options = one.options
    return {
        "lang": "py",
        "task": one.task,
        "id": id,
        "shadow": None,
        "eta": _moment(options.countdown, now),
        "expires": _moment(options.expires, now),
        "group": options.group_id,
        "group_index": options.group_index,
        "retries": 0,
        "timelimit": [options.time_limit, options.soft_time_limit],
        "root_id": parent.root,
        "parent_id": parent.id,
        "argsrepr": "(...)",
        "kwargsrepr": "{...}",
        "origin": "penstock",
        "ignore_result": bool(options.ignore_result),
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }


def _moment(seconds: float | None, now: float) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(now + seconds, UTC).isoformat()


def _properties(one: Signature, id: str) -> dict[str, object]:
    return {
        "correlation_id": id,
        "reply_to": one.options.reply_to or "",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": one.queue},
        "priority": one.options.priority or 0,
        "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }
