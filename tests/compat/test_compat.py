"""What docs/production/upgrades.md says of two versions at once, with real processes of two trees on one store (D144)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest

from penstock.broker.protocol import OLDEST, PROTOCOL
from tests.compat.pair import upgrade_and_back
from tests.compat.scene import RUN_ROWS, Callers, Part, Scene
from tests.compat.tree import ROOT, UNVERSIONED, CommitMissing, Tree, is_whole, next_protocol, pinned_tree, this_tree, tree_of
from tests.eventually import eventually

UPGRADES = ROOT / "docs" / "production" / "upgrades.md"
NEXT = PROTOCOL + 1
OWN_WORDS = f"this process has protocol version {PROTOCOL} and serves beside {OLDEST} and later"
NEXT_WORDS = f"this process has protocol version {NEXT} and serves beside {NEXT} and later"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path / "scene") as opened:
        yield opened


@contextmanager
def served_by(scene: Scene, tree: Tree) -> Iterator[Callers]:
    """A gateway and a worker of the tree serve within the block; then they are stopped."""
    worker, gateway = scene.start("worker", tree), scene.start("gateway", tree)
    for part in (worker, gateway):
        scene.await_ready(part)
    yield Callers(scene, [gateway.url])
    for part in (gateway, worker):
        part.stop()


def stays_out(scene: Scene, tree: Tree, why: str) -> list[Part]:
    """Start a worker and a gateway of the tree, which say why they stay out, and are not ready."""
    parts = [scene.start("worker", tree), scene.start("gateway", tree)]
    for part in parts:
        eventually(partial(_has_said, part, why), timeout_s=60.0)
    answer = eventually(lambda: _readiness(parts[1]))
    assert answer.status_code == 503
    assert why in answer.text
    assert [one.pid for one in scene.store.workers() if one.pid == parts[0].process.pid] == []
    return parts


def found(tree: Callable[[], Tree]) -> Tree:
    """The tree. Skips where this clone was made without the history that has it."""
    try:
        return tree()
    except CommitMissing as missing:
        if is_whole():
            raise
        pytest.skip(str(missing))


def _has_said(part: Part, why: str) -> bool:
    return why in part.log.read_text("utf-8", "replace")


def _readiness(gateway: Part) -> httpx2.Response | None:
    try:
        return httpx2.get(f"{gateway.url}/readyz")
    except httpx2.TransportError:
        return None


def test_the_page_names_the_protocol_version_of_this_tree() -> None:
    page = " ".join(UPGRADES.read_text("utf-8").split())
    assert f"This version has protocol version {PROTOCOL} and serves beside {OLDEST} and later" in page


def test_the_pinned_commit_and_this_tree_serve_one_store(tmp_path: Path) -> None:
    """An upgrade process by process, and back: jobs, delayed jobs, answers, webhooks, streams and a run lose nothing."""
    cost = upgrade_and_back(tmp_path / "scene", found(pinned_tree), this_tree())
    assert cost.faults == []
    assert cost.rows_twice < RUN_ROWS


@pytest.mark.parametrize("is_upgrade", [True, False], ids=["next beside this", "this beside next"])
def test_a_tree_of_another_protocol_version_stays_out_until_the_others_have_stopped(
    scene: Scene, tmp_path: Path, *, is_upgrade: bool
) -> None:
    """Regression: new workers took the leases of living old ones, and jobs ran again."""
    trees = [this_tree(), next_protocol(tmp_path / "next")]
    old, new = trees if is_upgrade else reversed(trees)
    with served_by(scene, old) as callers, callers.holding():
        parts = stays_out(scene, new, NEXT_WORDS if is_upgrade else OWN_WORDS)
    for part in parts:
        scene.await_ready(part)


def test_this_tree_stays_out_beside_a_worker_of_a_tree_without_protocol_versions(scene: Scene) -> None:
    """And once that one has stopped, this tree goes on with what it left: its jobs, and its run from the last commit."""
    old = found(lambda: tree_of(UNVERSIONED, "the tree before protocol versions"))
    runner = scene.start("runner", old)
    with served_by(scene, old) as callers:
        callers.start_run()
        eventually(lambda: callers.rows_done() > 0, timeout_s=60.0)
        with callers.holding() as job:
            parts = stays_out(scene, this_tree(), f"{OWN_WORDS}; worker ")
        assert "announces none" in parts[0].said()
        runner.stop()
    for part in parts:
        scene.await_ready(part)
    callers.urls[:] = [parts[1].url]
    assert callers.run_status() == "running"
    scene.start("runner", this_tree())
    scene.gate.touch()
    callers.await_run()
    assert httpx2.get(f"{parts[1].url}/v1/jobs/{job}/result").json() == {"tag": "held"}
