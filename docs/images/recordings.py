"""Terminal recordings: what commands really printed, as an SVG of a terminal."""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.blocks.running import run_page

_WIDTH = 120
_MOST_LINES = 32
# Lines of a log, which a reader's terminal shows too, hide what the picture is about.
_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[")
# The report of the model must come. Its verdict may be any: a busy machine keeps no goal, and that ends a command with 1.
_PAGE = """<!-- run
export COLUMNS={columns} LINES=50
penstock up examples/square.py
-->

```console
$ {command}
...
square ...
...
```
"""


def record(root: Path, name: str, source: str) -> str:
    """Run a page, or a command beside a `penstock up`, and draw what was typed and printed.

    Raises RuntimeError if something did not work.
    """
    if source.endswith(".md"):
        outcome = run_page(root / source)
    else:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "page.md")
            page.write_text(_PAGE.format(command=source, columns=_WIDTH))
            outcome = run_page(page)
    if outcome.failure:
        raise RuntimeError(outcome.failure)
    return drawn(Path(name).stem, outcome.transcript)


def drawn(title: str, transcript: tuple[tuple[str, str], ...]) -> str:
    """Return the terminal as an SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for typed, printed in transcript:
        console.print(Text("$ ", "green") + Text(typed, "bold"))
        for line in _shown(printed):
            console.print(Text(line))
    svg = console.export_svg(title=f"penstock: {title}", unique_id=title)
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def _shown(printed: str) -> list[str]:
    lines = [line.rpartition("\r")[2].rstrip() for line in re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", printed).splitlines()]
    kept = [line for line in lines if not _LOG_LINE.match(line)]
    return kept if len(kept) <= _MOST_LINES else [*kept[: _MOST_LINES - 1], "..."]
