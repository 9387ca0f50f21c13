"""What a child has in its hands: given, awaited, taken back, and who is to blame when it dies. Ends with its child."""

from __future__ import annotations

from dataclasses import replace

from penstock.workers.batcher import IDLE, Busy, Held
from penstock.workers.child_events import Cause, Lost, Ran
from penstock.workers.frames import Done, Item
from penstock.workers.process import ChildProcess


class Custody:
    """Used by the slot's thread only, but for `held`."""

    def __init__(self) -> None:
        # By number, in the order given. None: the child still works on it, but nobody wants the outcome any more.
        self._batches: dict[int, Held | None] = {}
        self._head_since = 0.0

    @property
    def empty(self) -> bool:
        return not self._batches

    def give(self, child: ChildProcess, held: Held, items: list[Item], now: float) -> None:
        if not self._batches:
            self._head_since = now
        number = child.give(items, held.profile_dir)
        self._batches[number] = replace(held, given_at=now, fresh=not self._batches)

    def done(self, done: Done, now: float) -> Ran | Lost | None:
        """None for a batch that nobody awaits."""
        held = self._batches.pop(done.batch, None)
        self._head_since = now
        if held is None:
            return None
        if not done.outcomes:
            # Recalled in the moment it began: both sides saw the other, and the child skipped it.
            return Lost(held, Cause.UNSTARTED, "recalled")
        return Ran(held, done)

    def limit_at(self, max_run_s: float) -> float:
        """When the child has run for too long."""
        return self._head_since + max_run_s if self._batches else float("inf")

    def held(self) -> list[Held]:
        """The batches whose outcome is awaited. Safe to call from any thread."""
        return [held for held in list(self._batches.values()) if held is not None]

    def busy(self, child: ChildProcess | None) -> Busy:
        """What the child has to do, batches that nobody awaits included."""
        if not self._batches or child is None:
            return IDLE
        number, head = next(iter(self._batches.items()))
        stage, since = child.stage(number)
        return Busy(
            batches=len(self._batches),
            size=head.size if head else 0,
            since=since if stage.begun else self._head_since,
            alone=any(held is not None and held.solo for held in self._batches.values()),
        )

    def recall(self, child: ChildProcess | None) -> list[Held]:
        """Take back the batches that have not begun to run; the child will skip them."""
        back = []
        for number, held in self._batches.items():
            if held is not None and child is not None and child.recall(number):
                back.append(held)
                self._batches[number] = None
        return back

    def disown(self, child: ChildProcess | None) -> list[Held]:
        """Give up every batch; what the child still says of them is ignored."""
        given_up = self.held()
        self.recall(child)
        self._batches = dict.fromkeys(self._batches)
        return given_up

    def suspects(self, child: ChildProcess, *, hung: bool) -> list[tuple[Held, bool]]:
        """Each awaited batch of a child that died, and whether its death may be that batch's doing."""
        numbers = list(self._batches)
        if hung:
            found = set(numbers[:1])
        else:
            # Nobody in its hands: then the first, for a batch that is never charged could come back for ever.
            found = {number for number in numbers if child.stage(number)[0].touched} or set(numbers[:1])
        return [(held, number in found) for number, held in self._batches.items() if held is not None]

    def clear(self) -> None:
        self._batches = {}
