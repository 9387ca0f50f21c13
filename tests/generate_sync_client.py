"""This script generates the blocking client from the asyncio client: `make sync-client`, or
`python -m tests.generate_sync_client`.

Both clients send the same calls in the same order, so the blocking one is the asyncio one without `async` and `await`. What
differs by nature is written by hand, for both in one module (`client/handles/at_once.py`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "client"
GENERATED = {
    "aio.py": "sync.py",
    "sender_aio.py": "sender.py",
    "handles/job_handle_aio.py": "handles/job_handle.py",
    "handles/job_map_aio.py": "handles/job_map.py",
    "handles/keys_aio.py": "handles/keys.py",
    "handles/operators_aio.py": "handles/operators.py",
    "handles/run_handle_aio.py": "handles/run_handle.py",
    "handles/stream_aio.py": "handles/stream.py",
    "handles/webhooks_aio.py": "handles/webhooks.py",
}
# The order matters: a later rule sees the text that the earlier rules have written.
RULES = (
    (r"The asyncio client\.", "The blocking client."),
    (r" `sync\.py` is generated from this file\.", ""),
    (r"The tasks of one loop may share it", "Threads may share it"),
    (r"an `async with` block", "a `with` block"),
    (r"Iterable\[Any\] \| AsyncIterable\[Any\]", "Iterable[Any]"),
    (r"asyncio\.to_thread\(([\w.]+), ", r"\1("),
    (r"asyncio\.sleep\b", "time.sleep"),
    (r"(?m)^import asyncio\n(?!import time)", "import time\n"),
    (r"penstock\.client\.aio\b", "penstock.client.sync"),
    (r"(\w+)_aio\b", r"\1"),
    (r"\(await ([\w.]+\(\))\)", r"\1"),
    (r"\b(?:async|await) ", ""),
    (r"\b__a(enter|exit|iter)__\b", r"__\1__"),
    (r"\b(?:aclose|aclosing|aread|aiter_lines|aiter_bytes|anext)\b", lambda found: found[0][1:]),
    (r"\.asynchronous\(", ".blocking("),
    (r"\bAsync(?=[A-Z])", ""),
)


def blocking_source(name: str) -> str:
    """Return the blocking twin of the asyncio module `name`, formatted."""
    text = (CLIENT / name).read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    head = f"# Generated from client/{name} by `make sync-client`. Change that file, not this one.\n"
    # The rules leave unused imports, names out of order, and blocks that read shorter without `async`. Ruff calls
    # `yield from` unsafe, because it also passes on what is sent into a generator; nothing is sent into this one.
    text = _ruff(
        ["check", "--quiet", "--fix-only", "--unsafe-fixes", "--select=I,F401,SIM117,UP028"], GENERATED[name], head + text
    )
    return _ruff(["format"], GENERATED[name], text)


def _ruff(command: list[str], name: str, text: str) -> str:
    arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", f"client/{name}", "-"]
    return subprocess.run(arguments, input=text, text=True, check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout


def main() -> None:
    for name, target in GENERATED.items():
        (CLIENT / target).write_text(blocking_source(name))


if __name__ == "__main__":
    main()
