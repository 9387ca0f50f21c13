"""peers.json as tables: on the terminal, in docs/why/peers.md, in the README; and as a column in the table of `make bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.peers.catalogue import OWN, OWN_NAMES
from benchmarks.peers.key_figures import KEY_FIGURES, Result, measured, ratio
from benchmarks.peers.workloads import ACCELERATOR, EMBEDDINGS, NOOP, WORKLOADS
from penstock.words import number

RESULTS = Path("benchmarks/results/peers.json")
FAULTS = Path("benchmarks/results/faults.json")
# What the README shows.
SHORT = (OWN, "mosec", "litserve", "ray", "celery")
_SHORT_LOADS = (NOOP, ACCELERATOR, EMBEDDINGS)
_WORKER_KILLS = "F2"
_HEAD = (
    "server",
    "requests/s",
    "penstock is",
    "p50 ms",
    "p99 ms",
    "lone p50 ms",
    "p99 ms at 100/s",
    "CPU us",
    "MiB",
    "batch",
    "errors",
)
_FIGURE_HEAD = ("figure", "what", "value", "target", "")
_BEGINS = "<!-- peers: python -m benchmarks.peers table --docs -->"
_ENDS = "<!-- end of peers -->"
_PAGE_WIDTH = 120


def load_result(path: Path) -> dict[str, Any]:
    """The saved result; empty: there is none."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.exists() else {}


def load_faults(path: Path) -> list[dict[str, Any]]:
    """The saved score sheet of `make faults`; empty: there is none."""
    return msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]]) if path.exists() else []


def rows(result: Result, workload: str) -> list[tuple[str, ...]]:
    """The rows of one workload, the fastest server first, servers without figures last."""
    lines = {name: line for name, line in result["peers"].items() if workload in line["workloads"]}
    ordered = sorted(lines, key=lambda name: -lines[name]["workloads"][workload]["rps"])
    measured = [_row(result, name, workload) for name in ordered]
    blank = [""] * (len(_HEAD) - 2)
    return measured + [(title, "not measured", *blank) for title in unmeasured(result, workload)]


def _row(result: Result, name: str, workload: str) -> tuple[str, ...]:
    line = result["peers"][name]
    found = line["workloads"][workload]
    times = ratio(result, name, workload)
    return (
        f"{line['title']} {line['version']}",
        f"{found['rps']:,.0f}",
        "" if times is None or name in OWN_NAMES else f"{times:.2f} x",
        f"{found['p50_ms']:.1f}",
        f"{found['p99_ms']:.1f}",
        f"{found['lone_p50_ms']:.2f}",
        f"{found['open_p99_ms']:.1f}" if "open_p99_ms" in found else "",
        f"{found['cpu_us']:,.0f}" if "cpu_us" in found else "",
        f"{found['memory_mib']:,.0f}" if "memory_mib" in found else "",
        str(found["batch"]),
        ", ".join(f"{count} x {kind}" for kind, count in found["errors"].items()) or "0",
    )


def unmeasured(result: Result, workload: str) -> list[str]:
    """The servers that took part in a workload and failed."""
    failed = dict.fromkeys(one["peer"] for one in result["failed"] if one["workload"] == workload)
    lines = result["peers"]
    return [lines[name]["title"] for name in failed if name in lines and not measured(result, name, workload)]


def figure_rows(result: Result) -> list[tuple[str, ...]]:
    """The key figures that were measured, with their targets."""
    found = [(figure, result[figure.name]) for figure in KEY_FIGURES if figure.name in result]
    return [(one.name, one.text, number(value), one.target_text(), one.verdict(value)) for one, value in found]


def show(result: Result, console: Console) -> None:
    for workload in WORKLOADS:
        if not any(workload.name in line["workloads"] for line in result["peers"].values()):
            continue
        table = Table(*_HEAD, title=f"{workload.title}, {result['method']['concurrency']} at once")
        for row in rows(result, workload.name):
            table.add_row(*row)
        console.print(table)
    figures = Table(*_FIGURE_HEAD, title="key figures")
    for row in figure_rows(result):
        figures.add_row(*row)
    console.print(figures)
    for note in notes(result):
        console.print(note, markup=False)


def notes(result: Result) -> list[str]:
    """What could not be measured and why, and which figures are doubtful."""
    absent = [f"{name} is absent: {reason}" for name, reason in result["absent"].items()]
    failed = [f"{one['peer']}, {one['workload']}: not measured: {_first_line(one['reason'])}" for one in result["failed"]]
    return [*absent, *failed, *(f"doubtful: {doubt}" for doubt in result["doubts"])]


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def behind(result: Result, workloads: Sequence[str]) -> list[str]:
    """The workloads and peers with a higher rate than penstock."""
    pairs = [(name, workload) for workload in workloads for name in result["peers"] if name not in OWN_NAMES]
    return [f"{workload}: {name}" for name, workload in pairs if (times := ratio(result, name, workload)) and times < 1]


def page_text(result: Result) -> str:
    """The circumstances, all tables and the notes, for docs/why/peers.md."""
    machine, method = result["machine"], result["method"]
    intro = (
        f"{machine['date'][:10]}, {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, Python {machine['python']}; "
        f"{method['rounds']} round{'s'[: method['rounds'] != 1]}, {method['busy_s']:g} s each under load."
    )
    titles = {workload.name: workload.title for workload in WORKLOADS}
    tables = [f"**{titles[name]}**\n\n{_markdown(_HEAD, rows(result, name))}" for name in titles if _any(result, name)]
    figures = [f"**Key figures**\n\n{_markdown(_FIGURE_HEAD, figure_rows(result))}"] if figure_rows(result) else []
    noted = (fill(f"- {note}", _PAGE_WIDTH, subsequent_indent="  ") for note in notes(result))
    return "\n\n".join([fill(intro, _PAGE_WIDTH), *figures, *tables, *noted])


def short_text(result: Result, faults: Sequence[Mapping[str, Any]]) -> str:
    """Four rows for the README: requests per second, and what 400 kills of workers lose; `faults` is `make faults`' result."""
    names = [name for name in SHORT if name in result["peers"]]
    head = ["64 requests at once", *(result["peers"][name]["title"] for name in names)]
    loads = [one for one in WORKLOADS if one.name in _SHORT_LOADS]
    lines = [[f"{one.title}: requests/s", *(_rate(result, name, one.name) for name in names)] for one in loads]
    lost = {one["system"]: f"{one['lost']} of {one['accepted']:,}" for one in faults if one["fault"] == _WORKER_KILLS}
    lines.append(["jobs lost while 400 `kill -9` hit workers", *(lost.get(name, "it stores none") for name in names)])
    cores, date = result["machine"]["cores"], result["machine"]["date"][:10]
    intro = (
        f"Measured on {cores} cores, the client's among them. penstock syncs every job to disk before it answers, which no "
        f"other server here does (rates of {date}: [method and all servers](docs/why/peers.md); kills of another day: "
        "[all faults](docs/why/guarantees.md#the-score-sheet)):"
    )
    return f"{fill(intro, _PAGE_WIDTH, break_on_hyphens=False)}\n\n{_markdown(head, lines)}"


def _any(result: Result, workload: str) -> bool:
    return any(workload in line["workloads"] for line in result["peers"].values())


def _rate(result: Result, name: str, workload: str) -> str:
    found = measured(result, name, workload)
    if not found:
        return "not measured" if result["peers"][name]["title"] in unmeasured(result, workload) else ""
    return f"{found['rps']:,.0f}"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def put_into(page: Path, text: str) -> None:
    """Replaces the text between the page's marks."""
    head, mark, rest = page.read_text().partition(f"{_BEGINS}\n")
    _, end, tail = rest.partition(f"{_ENDS}")
    page.write_text(f"{head}{mark}\n{text}\n\n{end}{tail}")


def beside(workload: str, *, path: Path = RESULTS, unit: float = 1.0) -> str:
    """The peers' rates in units of `unit`, in one line for the table of `make bench`; empty: they were not measured."""
    lines = load_result(path).get("peers", {}).items()
    rates = {
        line["title"]: line["workloads"][workload]["rps"]
        for name, line in lines
        if name not in OWN_NAMES and workload in line["workloads"]
    }
    ordered = sorted(rates.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{title} {rps / unit:,.0f}" if unit == 1.0 else f"{title} {rps / unit:.2f}" for title, rps in ordered)
