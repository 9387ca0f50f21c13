"""The saved figures of the doors as a table of the protocol's page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import BadRequest

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results" / "doors.json"
PAGE = ROOT / "docs" / "reference" / "open-inference-protocol.md"
_BEGINS = "<!-- doors: python -m benchmarks.experiments.doors --docs -->"
_ENDS = "<!-- end of doors -->"
_NAMES = {
    "own": "penstock's own route, `.npy`",
    "oip_rest": "REST, binary tensors",
    "oip_grpc": "gRPC, a connection per caller",
    "oip_grpc_shared": "gRPC, four callers per connection",
}


def table(found: Mapping[str, Any]) -> str:
    head = (
        "| Tensor | Door | Requests/s | To our own route | p50, ms | CPU µs per request: gateway | All of penstock |\n"
        "|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *_rows(found)])


def _rows(found: Mapping[str, Any]) -> Iterator[str]:
    for size, row in found["sizes"].items():
        for door, seen in row["doors"].items():
            cpu = {stage: spent for stage, spent in seen["cpu_us"].items() if stage not in ("client", "total")}
            yield (
                f"| {size}, {row['callers']} callers | {_NAMES[door]} | {seen['requests_per_s']:,.0f} | {seen['vs_own']:.2f} "
                f"| {seen['p50_ms']:.1f} | {cpu['gateway']:,.0f} | {sum(cpu.values()):,.0f} |"
            )


def put_in(text: str, found: Mapping[str, Any]) -> str:
    """The page with the table in its place. Raises `BadRequest` for a page that has none."""
    before, begins, rest = text.partition(_BEGINS)
    _, ends, after = rest.partition(_ENDS)
    if not begins or not ends:
        raise BadRequest(f"{PAGE.name} has no place for the table", hint=f"It stands between {_BEGINS} and {_ENDS}.")
    return f"{before}{begins}\n\n{table(found)}\n\n{ends}{after}"


def write_page(page: Path = PAGE, results: Path = RESULTS) -> None:
    page.write_text(put_in(page.read_text("utf-8"), json.loads(results.read_text("utf-8"))), "utf-8")
