"""The tables of docs/reference/torchserve.md, written between two comments. Pure, but for the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

_ENDS = "<!-- end -->"
_NAMES = {"torchserve": "TorchServe 0.12.0", "penstock": "penstock"}
_WORKS = {"noop": "a no-op", "pictures": "`image_classifier`, PNG of 300 x 280"}


def write_between(page: Path, name: str, text: str) -> None:
    """Replaces what stands between `<!-- name -->` and the end behind it. Raises `PenstockError` if the page lacks them."""
    begins = f"<!-- {name} -->"
    before, found, rest = page.read_text().partition(begins)
    _, end, after = rest.partition(_ENDS)
    if not (found and end):
        raise PenstockError(f"{page} has no {begins} with {_ENDS} behind it")
    page.write_text(f"{before}{begins}\n\n{text}\n\n{_ENDS}{after}")


def figures_table(found: Mapping[str, Any]) -> str:
    """Both servers under load and alone, then what they kept."""
    head = "| archive | server | requests/s, 64 at once | p50 / p99 ms | alone, p50 ms | CPU us per request | MiB |"
    rows = [row for work, turns in found["load"].items() for row in _load_rows(work, turns)]
    lost = "| killed | server | accepted | answered |"
    losses = [
        f"| {part} | {_NAMES[name]} | {kept['accepted']} | {kept['answered']} |"
        for part in ("worker", "server")
        for name, kept in ((name, parts[part]) for name, parts in found["losses"].items())
    ]
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows, "", lost, "|---|---|---|---|", *losses])


def _load_rows(work: str, turns: Mapping[str, Mapping[str, float]]) -> list[str]:
    rows = []
    for name, title in _NAMES.items():
        turn = turns[name]
        times = f" ({turns['ratio']['rps']:.2f} x)" if name == "penstock" else ""
        rows.append(
            f"| {_WORKS[work]} | {title} | {turn['rps']:,.0f}{times} | {turn['p50_ms']:.1f} / {turn['p99_ms']:.1f} | "
            f"{turn['lone_p50_ms']:.2f} | {turn['cpu_us']:,.0f} | {turn['memory_mib']:,.0f} |"
        )
    return rows
