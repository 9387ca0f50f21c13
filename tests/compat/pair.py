"""A rolling upgrade from one tree to another and back, under load, and what it cost."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx2

from tests.compat.scene import RUN_ROWS, Callers, Part, Scene
from tests.compat.tree import Tree
from tests.eventually import eventually

KINDS = ("worker", "gateway", "runner")


@dataclass(frozen=True)
class Cost:
    """What callers saw. `lost`: jobs, events and streams that did not end as they should. `twice`: jobs that ran twice."""

    jobs: int
    lost: tuple[str, ...]
    twice: tuple[str, ...]
    rows_twice: int
    answers: Counter[str]
    took_s: float

    @property
    def faults(self) -> list[str]:
        """All that an upgrade must not cost. Rows may run again, because the next runner begins at the last commit."""
        refused = [f"{count} answers {name}" for name, count in self.answers.items() if name not in ("200", "202")]
        return [f"lost: {one}" for one in self.lost] + [f"run twice: {one}" for one in self.twice] + refused

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs and {RUN_ROWS} rows in {self.took_s:.0f} s, lost {len(self.lost)}, run twice {len(self.twice)} "
            f"and {self.rows_twice} rows, {self.answers['503']} answers of 503"
        )


def upgrade_and_back(folder: Path, old: Tree, new: Tree) -> Cost:
    """Replace each process of `old` by one of `new`, one by one, and then those by processes of `old` again."""
    began = time.monotonic()
    with Scene(folder) as scene:
        callers = Callers(scene)
        parts = [scene.start(kind, old) for kind in ("worker", "worker", "gateway", "runner")]
        for part in parts:
            scene.await_ready(part)
        callers.urls[:] = [part.url for part in parts if part.kind == "gateway"]
        callers.start_run()
        with callers.calling():
            for tree in (new, old):
                parts = _roll(scene, callers, parts, tree)
                assert callers.run_status() == "running", "the run ended too early: give it more rows"
        scene.gate.touch()
        return _cost(scene, callers, began)


def _roll(scene: Scene, callers: Callers, parts: list[Part], tree: Tree) -> list[Part]:
    """Replace the parts by those of the tree: workers, gateways and runner in turn, so that all kinds of both trees meet."""
    return [part for kind in KINDS for part in _replace(scene, callers, [part for part in parts if part.kind == kind], tree)]


def _replace(scene: Scene, callers: Callers, leaving: list[Part], tree: Tree) -> list[Part]:
    """Stop each part once its successor is ready; the run goes on when the runner's successor starts."""
    fresh = [scene.await_ready(part) for part in [scene.start(part.kind, tree) for part in leaving]]
    if leaving[0].kind == "gateway":
        callers.urls[:] = [part.url for part in fresh]
    # Through a gateway that stays, so through the successor of one that stops. The worker of the stream may be one that stops.
    with callers.streaming(callers.urls[0]):
        for part in leaving:
            part.stop()
    return fresh


def _cost(scene: Scene, callers: Callers, began: float) -> Cost:
    callers.await_run()
    with httpx2.Client(base_url=callers.urls[0], timeout=30.0) as http:
        lost = [f"{job} {said}" for job in callers.jobs if (said := _end_of(http, job)) != "succeeded"]
    hooked = {job for job, query in callers.jobs.items() if query.startswith("webhoo")}
    eventually(lambda: hooked <= _told(scene), timeout_s=30.0)
    lost += [f"stream {number}" for number, whole in enumerate(callers.streams) if not whole]
    runs = scene.runs_of()
    twice = tuple(tag for tag, times in runs.items() if times > 1 and not tag.startswith("row-"))
    rows = sum(times - 1 for tag, times in runs.items() if tag.startswith("row-"))
    return Cost(len(callers.jobs), tuple(lost), twice, rows, callers.answers, time.monotonic() - began)


def _end_of(http: httpx2.Client, job: str) -> str:
    """The status in which the job ends."""

    def end() -> str:
        status = str(http.get(f"/v1/jobs/{job}").json().get("status"))
        return "" if status in ("queued", "running") else status

    return eventually(end, timeout_s=30.0)


def _told(scene: Scene) -> set[str]:
    return {str(request.event["data"]["id"]) for request in list(scene.hooks.requests)}
