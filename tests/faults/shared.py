"""One stack for many faults, one after the other: the suite starts the processes once, the score sheet anew for each fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tests.faults.checker import Verdict
from tests.faults.processes import Group
from tests.faults.shims import NoCompiler
from tests.faults.stack import Plan, Stack


class Reusable(Protocol):
    """A stack, of whatever kind, that is started already."""

    def begin_anew(self) -> None: ...

    def stop(self) -> None: ...


S = TypeVar("S", bound=Reusable)


class Shared(Generic[S]):
    """Makes a stack for the first fault. A fault that does not pass takes the stack with it, so that it spoils no other."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._stack: S | None = None

    def play(self, act: Callable[[S], Verdict]) -> Verdict:
        """Return what `act` finds; it sees only what has happened since its own begin."""
        if self._stack is None:
            self._stack = self._make()
        else:
            self._stack.begin_anew()
        passed = False
        try:
            verdict = act(self._stack)
            passed = verdict.passed
            return verdict
        finally:
            if not passed:
                self.close()

    def close(self) -> None:
        if self._stack is not None:
            self._stack.stop()
        self._stack = None


@dataclass(frozen=True, slots=True)
class Scene:
    """`workers` take part. They run when the fault begins, unless it starts them itself (`begun` is false)."""

    play: Callable[[Stack], Verdict]
    workers: int = 1
    begun: bool = True


class SharedStack(Stack):
    """A whole stack on a server that notes its fsyncs, where that can be built; `workers` are those of the present fault."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan, folder)
        self._every_worker = self.workers
        try:
            self.server.note_fsyncs(folder)
        except NoCompiler:
            self.notes_fsyncs = False
        else:
            self.notes_fsyncs = True

    def start(self) -> None:
        super().start()
        self.gateway.start()
        self.await_gateway()

    def stop(self) -> None:
        """Kill all: how a process ends that is told to is no matter of these faults, and costs seconds."""
        self.workers = self._every_worker
        for group in (group for group in (*self.workers, self.gateway) if group.running):
            group.kill()
        super().stop()

    def staff(self, scene: Scene) -> SharedStack:
        """Start or stop workers as the scene needs them; those that run already are the first to stay."""
        by_use = sorted(self._every_worker, key=lambda worker: not worker.running)
        self.workers = by_use[: scene.workers]
        for worker in self._every_worker:
            _bring(worker, runs=scene.begun and worker in self.workers)
        if scene.begun:
            self.await_ready()
        return self


def _bring(worker: Group, *, runs: bool) -> None:
    if runs and not worker.running:
        worker.start()
    elif not runs:
        worker.stop()
