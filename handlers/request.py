"""`penstock.Request`: an item together with what its job and its request say of it, for handlers that ask for it."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """What a handler is given per item whose first stage is annotated `list[Request[T]]`; `input` is the item itself.

    `attempt` counts the runs of the job from 1. `headers` (lower-case names) and `query` hold what the model's settings name in
    `request_headers` and `query`, and the caller sent. `owner` is that of the caller's key; empty without one. Outside of a
    job, as in the warm-up, all but `input` have their defaults.
    """

    input: T
    job: str = ""
    attempt: int = 1
    priority: str = "interactive"
    owner: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    # On the monotonic clock of this machine.
    deadline: float = field(default=inf, repr=False)

    @property
    def remaining_s(self) -> float:
        """Seconds until the job's deadline: 0 if it has passed, infinity if there is none."""
        return max(0.0, self.deadline - monotonic())


def asked_for(hint: Any) -> tuple[Any, bool]:
    """The type of the input in an annotation of one item, and whether it is to come as a `Request`."""
    if hint is Request:
        return Any, True
    if typing.get_origin(hint) is Request:
        return typing.get_args(hint)[0], True
    return hint, False
