"""A test waits with `eventually`: no other loop of the tests sleeps until it sees something."""

from __future__ import annotations

import ast
import asyncio
import textwrap
from collections.abc import Iterator

import pytest

from tests.eventually import eventually, eventually_async
from tests.house import ROOT

# What may poll by itself, and why; a folder stands for all its modules.
ALLOWED = {
    "tests/blocks/terminal.py": "reads the terminal meanwhile, and kills what does not end in time",
    "tests/compat/scene.py": "callers, who ask again; what they were answered is counted",
    "tests/compat/traced.py": "models, which hold their items until a test opens a gate",
    "tests/compose/load.py": "a paced load, which asks again as a user does, after errors of the client",
    "tests/eventually.py": "the loop that all share",
    "tests/faults/asker.py": "a user of a campaign, who asks again; what they saw is a complaint of its sheet, no failure",
    "tests/faults/driver.py": "users of a campaign, who ask again until time is up; what they saw is judged later",
    "tests/faults/proxy.py": "a link, which passes data on late when a fault says so",
    "tests/faults/scenarios/hand_over.py": "submits for as long as a worker takes to stop",
    "tests/faults/scenarios/kill_storm.py": "starts what dies, as a service manager does",
    "tests/faults/scenarios/links.py": "measures a recovery; none in time is a figure of the sheet",
    "tests/faults/scenarios/runs.py": "watches a run, or that nothing happens",
    "tests/faults/soak/__main__.py": "moves the events of a soak on, for as long as it lasts",
    "tests/faults/steps.py": "takes a dump with jobs under way in the end, for the checker to judge",
    "tests/faults/storm.py": "kills, each at its time",
    "tests/faults/streams/audience.py": "readers who come again until time is up; what they heard is judged later",
    "tests/handlers": "models, which hold their items until a test opens a gate",
    "tests/model_hub.py": "answers slowly, as a distant server does",
    "tests/monitoring/gated.py": "a model, which holds its items until a test opens a gate",
    "tests/acceptance/test_rolling_restart.py": "a paced load, until the test ends it",
    "tests/security/test_wire.py": "a paced load, whose waits are measured",
}


def polls_in(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each loop that sleeps and has an end: a condition, or a way out. `sleep(0)` only lets others run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.While | ast.For | ast.AsyncFor) and _ends(node) and any(map(_sleeps, ast.walk(node))):
            yield node.lineno


def _ends(loop: ast.While | ast.For | ast.AsyncFor) -> bool:
    has_condition = isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant)
    return has_condition or any(isinstance(node, ast.Break | ast.Return) for node in ast.walk(loop))


def _sleeps(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    is_turn = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
    return called == "sleep" and not is_turn


def polling() -> Iterator[tuple[str, int]]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text("utf-8")
        if "sleep(" in text:
            yield from ((path.relative_to(ROOT).as_posix(), line) for line in polls_in(ast.parse(text)))


def is_allowed(path: str) -> bool:
    return any(path == allowed or path.startswith(f"{allowed}/") for allowed in ALLOWED)


def test_a_wait_that_is_over_says_what_it_found_last() -> None:
    with pytest.raises(AssertionError, match="still 0 after 0 s"):
        eventually(lambda: 0, timeout_s=0.0)


async def test_a_loop_goes_on_while_its_test_waits() -> None:
    async def is_there() -> str:
        assert turns, "nobody came"
        return "there"

    turns: list[int] = []
    asyncio.get_running_loop().call_later(0.01, turns.append, 1)
    assert await eventually_async(is_there) == "there"
    turns.clear()
    with pytest.raises(AssertionError, match="nobody came"):
        await eventually_async(is_there, timeout_s=0.0)


def test_tests_wait_with_eventually() -> None:
    assert [f"{path}:{line}" for path, line in polling() if not is_allowed(path)] == []


def test_whatever_is_allowed_to_poll_does() -> None:
    found = [path for path, _ in polling()]
    assert [one for one in ALLOWED if not any(path == one or path.startswith(f"{one}/") for path in found)] == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("while not done():\n    time.sleep(0.1)", [1]),
        ("while True:\n    if done():\n        break\n    sleep(1)", [1]),
        ("for _ in range(9):\n    if done():\n        return\n    await asyncio.sleep(pause_s)", [1]),
        ("for at in moments:\n    time.sleep(at)\n    act()", []),
        ("while True:\n    tick()\n    time.sleep(1)", []),
        ("while not done():\n    await asyncio.sleep(0)", []),
        ("while not done():\n    wait(1)", []),
    ],
)
def test_a_loop_that_sleeps_until_it_sees_something_is_found(text: str, lines: list[int]) -> None:
    assert list(polls_in(ast.parse("async def f():\n" + textwrap.indent(text, "    ")))) == [line + 1 for line in lines]
