"""A35: every regular expression of the tree, on inputs that make a badly written expression very slow."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "broker", "handlers", "workers", "gateway", "client", "extensions", "runs", "loadtest", "tune", "cli")
FOLDERS = (*PACKAGES, "benchmarks", "examples")
SIZE = 50_000
METHODS = ("match", "search", "fullmatch", "sub", "split", "findall", "finditer")
# On an idle machine an expression takes at most 5 ms.
LIMIT_S = 0.025


@dataclass(frozen=True)
class Use:
    """One use of a pattern: where it is, and the method of `re` that applies the pattern."""

    where: str
    pattern: str | bytes
    flags: int
    method: str


def uses() -> Iterator[Use]:
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            source = file.read_text("utf-8")
            # To parse the whole tree takes seconds, and few modules have a pattern.
            if re.search(r"\bre\.\w+\(", source):
                yield from _uses_in(file.relative_to(ROOT), source)


def _uses_in(file: Path, source: str) -> Iterator[Use]:
    nodes = list(ast.walk(ast.parse(source)))
    names = {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_re(node.value, "compile")
    }
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            holder = node.func.value
            made = node if _is_re(node, *METHODS) else names.get(holder.id) if isinstance(holder, ast.Name) else None
            if made is not None:
                yield _use(f"{file}:{node.lineno}", made, node.func.attr)
    for name, made in names.items():
        # The pattern is used in another module; `fullmatch` stands for the method that the other module calls.
        if not re.search(rf"\b{name}\.(?:{'|'.join(METHODS)})\(", source):
            yield _use(f"{file}:{name}", made, "fullmatch")


def _use(where: str, made: Any, method: str) -> Use:
    flags = sum(getattr(re, flag) for flag in re.findall(r"re\.([A-Z]+)", ast.unparse(made)))
    return Use(where, ast.literal_eval(made.args[0]), flags, method)


def _is_re(node: ast.AST, *functions: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{name}" for name in functions}


def attacks(pattern: str) -> Iterator[str]:
    """Long repetitions of each character of the pattern, alone and in pairs, with an end that does not match."""
    letters = sorted({*re.sub(r"\\[dwsDWS]|[^\x20-\x7e]", "", pattern), *'a0A "\\-.=:,;/'} - set("()?*+|^$"))
    for letter in letters:
        yield letter * SIZE
        yield letter * SIZE + "\x01"
        yield "a" + letter * SIZE + "!"
    pairs = [(one, other) for one in 'a0"\\ =' for other in letters]
    for one, other in pairs:
        yield (one + other) * (SIZE // 2) + "\x01"
    for prefix in ("wait=", '"', "penstock.", "a:", "v1."):
        yield prefix + "0" * SIZE + "\x01"


USES = list(uses())


@pytest.mark.parametrize("use", USES, ids=lambda use: f"{use.where}-{use.method}")
def test_no_pattern_takes_long_on_any_50_kb(use: Use) -> None:
    pattern = re.compile(use.pattern, use.flags)
    text = use.pattern if isinstance(use.pattern, str) else use.pattern.decode("latin-1")
    worst = (0.0, "")
    for attack in attacks(text):
        given: Any = attack if isinstance(use.pattern, str) else attack.encode("latin-1")
        lasted = min(_lasts(pattern, use.method, given) for _ in range(2 if worst[0] > LIMIT_S / 2 else 1))
        worst = max(worst, (lasted, attack[:12]))
        if lasted > LIMIT_S:
            lasted = min(_lasts(pattern, use.method, given) for _ in range(3))
            assert lasted < LIMIT_S, f"{lasted * 1e3:.1f} ms on {attack[:12]!r}..."


def _lasts(pattern: re.Pattern[Any], method: str, given: Any) -> float:
    """Seconds of processor time, so that other processes on the same core do not count."""
    before = time.thread_time()
    if method == "sub":
        pattern.sub(type(given)(), given)
    elif method == "finditer":
        list(pattern.finditer(given))
    else:
        getattr(pattern, method)(given)
    return time.thread_time() - before


def test_the_search_for_patterns_finds_them() -> None:
    """The search finds patterns; otherwise the test above would pass without any pattern."""
    found = {use.where.partition(":")[0] for use in USES}
    assert {
        "core/job.py",
        "gateway/asgi/negotiation.py",
        "gateway/asgi/bodies.py",
        "gateway/asgi/problems.py",
        "core/access.py",
    } <= found
