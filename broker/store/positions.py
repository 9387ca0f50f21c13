"""The order of arguments, replies and fields that Python and Lua share: one class each, so no code counts positions. Pure.

Python builds a call by naming the values (`SubmitItem(serial=..., ...)`), and reads a reply by name. In the Lua files a name
stands behind the table's, as in `args[at + @submit.owner]`, and `tokens()` says which number replaces it.
"""

# D125: docs/design/extensions.md

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Arg = bytes | str | int


class SubmitHead(NamedTuple):
    """The arguments of `submit` that stand before the jobs."""

    max_depth: Arg
    key_ttl: Arg
    told: Arg


class SubmitItem(NamedTuple):
    """One job of a `submit`. In a call with `told` one word for each extension that takes part in submits stands behind it."""

    serial: Arg
    version: Arg
    band: Arg
    deadline: Arg
    ttl: Arg
    owner: Arg
    media: Arg
    input: Arg
    blob: Arg
    key: Arg
    fingerprint: Arg
    terms: Arg
    watch: Arg
    most_open: Arg
    call: Arg
    trace: Arg
    replay_of: Arg
    delay: Arg
    tags: Arg
    placing: Arg


class ClaimArgs(NamedTuple):
    version: Arg
    worker: Arg
    nonce: Arg
    limit: Arg
    enough: Arg
    max_wait: Arg
    min_slack: Arg
    slack_per_item: Arg
    hurry: Arg
    lease: Arg
    limit_bytes: Arg
    shard: Arg
    offer: Arg


class ClaimHead(NamedTuple):
    """What the reply of `claim` begins with. Behind it stand `messages` messages, the changes, and the jobs."""

    reason: bytes
    depth: int
    retry: int
    now: int
    stepped: int
    expired: int
    messages: int
    shards: int
    gone: int


class ClaimedItem(NamedTuple):
    """One job in the reply of `claim`."""

    serial: bytes
    token: bytes
    media: bytes
    input: bytes
    blob: bytes
    band: bytes
    created: bytes
    deadline: Any
    attempts: Any
    crashes: Any
    call: bytes
    trace: bytes
    owner: bytes


class ChangeItem(NamedTuple):
    """A change of a job that its holder did not make, in the replies of `claim` and `sweep`."""

    event: bytes
    serial: bytes
    state: bytes
    version: bytes
    token: bytes
    trace: bytes


class FinishHead(NamedTuple):
    worker: Arg
    stamp: Arg


class FinishItem(NamedTuple):
    serial: Arg
    token: Arg
    state: Arg
    media: Arg
    output: Arg
    blob: Arg
    code: Arg
    message: Arg
    traceback: Arg


class ReportItem(NamedTuple):
    serial: Arg
    token: Arg
    progress: Arg
    restarts: Arg
    before: Arg
    chunks: Arg


class RunCreateArgs(NamedTuple):
    """The arguments of `run_create`. Behind them stands one word for each extension that takes part in submits."""

    id: Arg
    owner: Arg
    spec: Arg
    keep: Arg
    deadline: Arg
    command: Arg
    most: Arg


class RecordFields(NamedTuple):
    """The fields of a job's record that a read returns. An absent one is empty."""

    state: str
    version: str
    band: str
    created: str
    deadline: str
    owner: str
    media: str
    terms: str
    attempts: str
    crashes: str
    epoch: str
    token: str
    final_token: str
    started: str
    finished: str
    cancel: str
    code: str
    message: str
    stamp: str
    worker: str
    out_media: str
    out_blob: str
    past: str
    more: str
    trace: str
    replay_of: str
    replayed_as: str
    not_before: str
    progress: str
    tags: str
    call: str


class RunFields(NamedTuple):
    """The fields of a run's record. An absent one is empty."""

    owner: bytes
    spec: bytes
    state: bytes
    created: bytes
    started: bytes
    finished: bytes
    version: bytes
    counts: bytes
    rate: bytes
    busy: bytes
    driver: bytes
    until: bytes
    request: bytes
    code: bytes
    message: bytes
    details: bytes
    drives: bytes
    parts: bytes
    part_of: bytes
    part: bytes


# The fields of a job's record that a claim reads.
LEASED = (
    "media",
    "blob",
    "band",
    "created",
    "attempts",
    "crashes",
    "epoch",
    "watch",
    "in",
    "call",
    "trace",
    "state",
    "not_before",
    "owner",
)

# Lists, whose first entry is at 1. `@NAME.list` names all their entries, and `@NAME.blank` is as many zeros.
_LISTS: Mapping[str, Sequence[str]] = {
    "claim": ClaimArgs._fields,
    "claim_head": ClaimHead._fields,
    "claimed": ClaimedItem._fields,
    "change": ChangeItem._fields,
    "run_create": RunCreateArgs._fields,
    "record": RecordFields._fields,
    "run": RunFields._fields,
    "leased": LEASED,
}
# Arguments that repeat: what stands before them, at 1 and behind, and one item, whose first argument is at 0. `@NAME.first` is
# where the first item begins, `@NAME.stride` how long one is, and `@NAME.stride_told` how long with words of extensions.
_REPEATED: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "submit": (SubmitHead._fields, SubmitItem._fields),
    "finish": (FinishHead._fields, FinishItem._fields),
    "report": ((), ReportItem._fields),
}


def tokens(words: int) -> dict[str, str]:
    """The text that replaces each name in the Lua files. `words`: how many extensions have a word in submits."""
    numbers: dict[str, str] = {}
    for name, fields in _LISTS.items():
        _add(numbers, name, fields, first=1)
        numbers[f"{name}.list"], numbers[f"{name}.blank"] = (
            ", ".join(f"'{field}'" for field in fields),
            ", ".join("0" for _ in fields),
        )
    for name, (head, item) in _REPEATED.items():
        _add(numbers, name, head, first=1)
        _add(numbers, name, item, first=0)
        numbers[f"{name}.first"] = str(len(head) + 1)
        numbers[f"{name}.stride"], numbers[f"{name}.stride_told"] = str(len(item)), str(len(item) + words)
    # Where the words of extensions begin.
    numbers["submit.words"] = str(len(SubmitItem._fields))
    numbers["run_create.words"] = str(len(RunCreateArgs._fields) + 1)
    return numbers


def _add(numbers: dict[str, str], name: str, fields: Sequence[str], *, first: int) -> None:
    for position, field in enumerate(fields, start=first):
        assert f"{name}.{field}" not in numbers, f"{name}.{field} stands for two positions"
        numbers[f"{name}.{field}"] = str(position)
