"""Every key and sharded channel of a function lies in the slot of its KEYS[1]; what does not is listed here, and why."""

from __future__ import annotations

import re

from penstock.broker.store.registry import REGISTRY
from tests.lua_files import LUA

# Names that a function does not build from its first key, by file. docs/production/scale.md has the list in words.
OTHER_NAMES = {
    ("lib", REGISTRY),  # the tag of the registry, whose functions get a key with it
    ("lib", "penstock.{"),  # ticket lists: the queue's own tag follows
    ("outbox", "ps:runs:{runs}:"),  # compared with the first key, never used beside another
    ("outbox", "ps:events"),  # a plain channel
    ("celery", "ps:{*}:answers"),  # of tasks of Celery's clients, of which a cluster has none
    ("celery", "celery-task-meta-"),
    ("celery", "penstock"),
    ("celery", "penstock.errors"),  # no key: the module of an error
    ("foreign", "ps:{"),  # a message at the door of Celery's clients goes to its model
}
_NAME = re.compile(r"'((?:ps:|penstock|celery-)[^']*)'")
_SHARDED = re.compile(r"'(?:SPUBLISH)', (\S+)|SHARDNUMSUB")


def code_of(text: str) -> str:
    return "\n".join(line.partition("--")[0] for line in text.splitlines())


def test_names_that_are_not_built_from_the_first_key_are_known() -> None:
    found = {(file, name) for file, text in LUA.items() for name in _NAME.findall(code_of(text))}
    assert {entry for entry in found if not entry[1].startswith("penstock_")} == OTHER_NAMES


def test_sharded_channels_are_of_the_queue() -> None:
    named = {name for text in LUA.values() for name in _SHARDED.findall(code_of(text)) if name}
    assert named == {"p"}
    assert "p .. 'worker:'" in LUA["lines"]


def test_plain_channels_are_those_that_all_nodes_hear() -> None:
    told = {line.strip() for text in LUA.values() for line in code_of(text).splitlines() if "'PUBLISH'" in line}
    kinds = {re.search(r"'PUBLISH', ([\w.]+)", line).group(1) for line in told}  # type: ignore[union-attr]
    assert kinds == {"own.EVENTS", "own.META", "channel", "ROLLOUTS"}
