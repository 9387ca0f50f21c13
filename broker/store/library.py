"""The Redis Function library, assembled from `functions/*.lua`, named by its hash, and loaded into a store that lacks it.

The hash is part of every function's name, so two versions of penstock run side by side on one Redis during a rolling deploy.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

# D10 (docs/design/store.md)
ORDER = (
    "lib",
    "gather",
    "outbox",
    "lines",
    "celery",
    "ending",
    "turns",
    "submit",
    "claim",
    "finish",
    "retry",
    "release",
    "hand_over",
    "extend",
    "report",
    "sweep",
    "cancel",
    "forget",
    "dismiss",
    "purge",
    "lists",
    "reconcile",
    "read",
    "history",
    "foreign",
    "presence",
    "swap",
    "split",
    "deliver",
    "keys",
    "audit",
    "runs",
)


# Lua allows 200 local names in one block, so what a file defines for itself alone stays in a block of its own.
# tests/unit/broker/store/test_lua_locals.py counts them.
SHARED = ("lib", "gather", "outbox", "lines", "celery", "ending", "turns")


@cache
def body() -> str:
    folder = files("penstock.broker") / "functions"
    texts = {name: (folder / f"{name}.lua").read_text("utf-8") for name in ORDER}
    return "\n".join(text if name in SHARED else f"do\n{text}end" for name, text in texts.items())


def suffix_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def library(text: str | None = None) -> tuple[str, str]:
    """Return the suffix that every function name has, and the source of the library."""
    text = body() if text is None else text
    suffix = suffix_of(text)
    return suffix, f"#!lua name=penstock_{suffix}\nlocal SUFFIX = '{suffix}'\n{text}"
