"""The question of a search, and its budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.loadtest.generator.connection import RequestBody
from penstock.model_spec import ModelSpec
from penstock.tune.result import Goal
from penstock.workers.devices.machine import Machine

# The name of the step, its progress from 0 to 1, and the current action.
OnProgress = Callable[[str, float, str], None]


@dataclass(frozen=True, slots=True)
class TuneQuestion:
    """The question of a search.

    `table` holds the settings of `[models.NAME]` as declared, `named` the dimensions that the user gave, already checked. The
    search starts no step after `budget_s`, but finishes the current one. `folder`: for the trial stacks, on a real disk;
    None: the current folder.
    """

    spec: ModelSpec
    table: Mapping[str, Any]
    goal: Goal
    machine: Machine
    named: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    inputs: tuple[RequestBody, ...] = ()
    budget_s: float = 600.0
    resume: Path | None = None
    folder: Path | None = None


@dataclass(slots=True)
class SearchClock:
    """The budget of time, and the duration of each step."""

    budget_s: float
    began_at: float
    steps_s: dict[str, float] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.began_at)

    def past(self, share: float) -> bool:
        return self.left_s < (1.0 - share) * self.budget_s

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.steps_s[name] = round(time.monotonic() - began, 3)
