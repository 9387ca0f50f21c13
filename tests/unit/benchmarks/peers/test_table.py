from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.measured_figure import missed
from benchmarks.peers.key_figures import KEY_FIGURES, key_figures, ratio
from benchmarks.peers.table import (
    FAULTS,
    RESULTS,
    behind,
    beside,
    figure_rows,
    load_faults,
    load_result,
    notes,
    page_text,
    put_into,
    rows,
    short_text,
    show,
)
from tests.markdown import ROOT


def line(title: str, rps: float, *, durable: bool = False) -> dict[str, Any]:
    found = {
        "batch": 32,
        "rps": rps,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "lone_p50_ms": 0.5,
        "cpu_us": 520.4,
        "memory_mib": 161.2,
        "errors": {"503": 2} if rps < 1e3 else {},
    }
    return {"title": title, "version": "1.0", "durable": durable, "settings": "", "workloads": {"accelerator": found}}


RESULT: dict[str, Any] = {
    "machine": {"date": "2026-11-21T00:00:00", "cores": 2, "processor": "a cpu", "memory_bytes": 2**34, "python": "3.11.7"},
    "method": {"rounds": 2, "concurrency": 64, "busy_s": 4.0},
    "peers": {
        "penstock": line("penstock", 1_500.0, durable=True),
        "mosec": line("Mosec", 1_600.0),
        "ray": line("Ray Serve", 300.0),
        "bentoml": {**line("BentoML", 1.0), "workloads": {}},
    },
    "absent": {"torchserve": "needs java on the path"},
    "failed": [{"peer": "bentoml", "workload": "accelerator", "reason": "no right answer within 90 s; the log\nmore"}],
    "doubts": ["ray, accelerator: busy"],
}


def test_a_ratio_says_how_many_times_as_quick_penstock_is() -> None:
    assert ratio(RESULT, "ray", "accelerator") == pytest.approx(5.0)
    assert ratio(RESULT, "bentoml", "accelerator") is None
    assert ratio(RESULT, "nobody", "accelerator") is None


def test_rows_are_ordered_by_rate_and_what_was_not_measured_has_no_figure() -> None:
    found = rows(RESULT, "accelerator")
    assert [row[0] for row in found] == ["Mosec 1.0", "penstock 1.0", "Ray Serve 1.0", "BentoML"]
    assert [row[2] for row in found[:3]] == ["0.94 x", "", "5.00 x"]
    assert found[0][7:9] == ("520", "161")
    assert found[2][-1] == "2 x 503"
    assert found[3][1] == "not measured"
    assert len({len(row) for row in found}) == 1


def with_workloads(line: dict[str, Any], **rates: float) -> dict[str, Any]:
    (found,) = line["workloads"].values()
    return {**line, "workloads": {name: {**found, "rps": rps} for name, rps in rates.items()}}


def test_the_key_figures_are_those_whose_servers_were_measured() -> None:
    own = with_workloads(RESULT["peers"]["penstock"], noop=4_000.0, accelerator=1_500.0, embeddings=200.0)
    costed = with_workloads(line("penstock, own handler, `cost`", 1.0), embeddings=180.0)
    mosec = with_workloads(RESULT["peers"]["mosec"], noop=16_000.0, accelerator=1_600.0, embeddings=120.0)
    result = {**RESULT, "peers": {"penstock": own, "penstock-cost": costed, "mosec": mosec}}
    found = key_figures(result)
    assert found == {"cpu_us_per_noop": 520.4, "accel_vs_mosec": 0.938, "own_minilm_cost_vs_mosec": 1.5}
    assert missed(KEY_FIGURES, found) == ["accel_vs_mosec"]
    names = [row[0] for row in figure_rows({**result, **found})]
    assert names == ["cpu_us_per_noop", "accel_vs_mosec", "own_minilm_cost_vs_mosec"]
    page = page_text({**result, **found})
    assert "| 0.938 | >= 1.05 | MISSED |" in page
    row = next(row for row in rows(result, "embeddings") if row[0].startswith("penstock, own"))
    assert row[2] == ""
    killed = [{"fault": "F2", "system": "penstock", "lost": 0, "accepted": 1500}]
    short = short_text(result, killed)
    assert "| 64 requests at once | penstock | Mosec |" in short
    assert "| no-op: requests/s | 4,000 | 16,000 |" in short
    assert "| jobs lost while 400 `kill -9` hit workers | 0 of 1,500 | it stores none |" in short


def test_the_figures_of_the_readme_are_those_of_the_saved_results() -> None:
    text, result = (ROOT / "README.md").read_text(), load_result(ROOT / RESULTS)
    assert short_text(result, load_faults(ROOT / FAULTS)) in text
    assert "Mosec and TorchServe, which store nothing, are faster when the model does nothing" in text
    assert behind(result, ["noop"]) == ["noop: mosec", "noop: torchserve"]
    assert behind(result, ["accelerator", "embeddings"]) == []


def test_the_key_figures_with_a_bar_have_it_as_their_target() -> None:
    targets = {figure.name: figure.target for figure in KEY_FIGURES if figure.target is not None}
    assert targets == {"noop_vs_torchserve": 2.0, "accel_vs_mosec": 1.05, "accel_100k_vs_mosec": 1.0}


def test_where_penstock_is_behind_is_named() -> None:
    assert behind(RESULT, ["accelerator", "embeddings"]) == ["accelerator: mosec"]


def test_absent_failed_and_doubtful_are_reported() -> None:
    told = "\n".join(notes(RESULT))
    assert "torchserve is absent: needs java" in told
    assert "bentoml, accelerator: not measured: no right answer within 90 s; the log" in told
    assert "more" not in told
    assert "doubtful: ray" in told


def test_the_terminal_shows_a_table_per_workload_that_was_measured() -> None:
    out = io.StringIO()
    show(RESULT, Console(file=out, width=200))
    assert "stand-in accelerator, 64 at once" in out.getvalue()
    assert "MiniLM" not in out.getvalue()


def test_pages_get_what_stands_between_their_marks_again_and_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begins, ends = "<!-- peers: python -m benchmarks.peers table --docs -->", "<!-- end of peers -->"
    page.write_text(f"before\n{begins}\nold\n{ends}\nafter\n")
    put_into(page, page_text(RESULT))
    put_into(page, short_text(RESULT, []))
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith(f"{ends}\nafter\n")
    assert "| stand-in accelerator: requests/s | 1,500 | 1,600 | 300 |" in text


def test_the_pages_of_this_tree_have_the_marks() -> None:
    for name in ("docs/why/peers.md", "README.md"):
        text = (Path(__file__).parents[4] / name).read_text()
        assert text.count("<!-- peers: python -m benchmarks.peers table --docs -->\n") == 1
        assert text.count("<!-- end of peers -->") == 1


def test_the_table_of_the_main_path_gets_the_peers_rates_where_they_were_measured(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    assert beside("accelerator", path=path) == ""
    path.write_text(json.dumps(RESULT))
    assert beside("accelerator", path=path) == "Mosec 1,600, Ray Serve 300"
    assert beside("accelerator", path=path, unit=1_600.0) == "Mosec 1.00, Ray Serve 0.19"
