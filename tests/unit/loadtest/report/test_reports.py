from __future__ import annotations

import csv
import html.parser
import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from penstock.errors import BadRequest
from penstock.loadtest.report.axes import even_ticks, log_ticks
from penstock.loadtest.report.charts import ChartLine, bar_chart, line_chart
from penstock.loadtest.report.csv_row import append_row
from penstock.loadtest.report.page import render
from penstock.loadtest.report.table import print_result
from tests.unit.loadtest.made import result

# The columns of TorchServe's benchmark report in its order, because scripts look for these names.
FORMER = (
    "Benchmark,Batch size,Batch delay,Workers,Model,Concurrency,Input,Requests,TS failed requests,TS throughput,TS latency P50,"
    "TS latency P90,TS latency P99,TS latency mean,TS error rate,Model_p50,Model_p90,Model_p99,predict_mean,handler_time_mean,"
    "waiting_time_mean,worker_thread_mean,cpu_percentage_mean,memory_percentage_mean,gpu_percentage_mean,"
    "gpu_memory_percentage_mean,gpu_memory_used_mean,"
)


class Reader(html.parser.HTMLParser):
    """Checks that tags are closed in order. `links`: all attributes that could make a browser fetch something."""

    VOID = frozenset({"meta", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "srcset", "action", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    page = render(result())
    reader = read(page)
    assert reader.links == ["data:,"]
    assert {"script", "img", "iframe", "object"} & set(reader.tags) == set()
    assert re.findall(r"url\(|@import|https?://(?!127\.0\.0\.1:8080)", page) == []
    assert len(page.encode()) < 100_000
    for title in (
        "Latency over time",
        "Distribution",
        "Throughput against offered",
        "Where the time goes",
        "Batch sizes",
        "Devices",
    ):
        assert title in page


def test_what_others_wrote_cannot_become_a_part_of_the_page() -> None:
    evil = "<script>alert(1)</script>"
    page = render(result(model=evil, said=evil, limits=[evil]))
    assert "script" not in read(page).tags


def test_every_report_says_that_the_generator_was_the_limit() -> None:
    limited = result(limits=["requests left late"])
    stream = io.StringIO()
    print_result(limited, Console(file=stream, width=140))
    assert "generator-limited: requests left late" in stream.getvalue()
    assert "generator-limited: requests left late" in render(limited)
    assert msgspec.json.decode(msgspec.json.encode(limited))["generator_limited"] is True


def test_the_table_has_the_figures() -> None:
    stream = io.StringIO()
    print_result(result(said="full"), Console(file=stream, width=140))
    text = stream.getvalue()
    for words in (
        "offered 15/s, answered 14/s",
        "10 x 503: full",
        "p99.9",
        "1: 100, 2: 20",
        "full 20, idle 100",
        "gateway",
        "H200",
    ):
        assert words in text


def test_a_csv_file_grows_by_a_line_under_the_former_names(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    append_row(result(), path)
    append_row(result(model="other"), path)
    with path.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert path.read_text().startswith(FORMER)
    assert (first["Model"], second["Model"]) == ("square", "other")
    assert (first["Batch size"], first["Batch delay"], first["Workers"], first["Requests"]) == ("8", "10.0", "1", "150")
    assert float(first["cpu_percentage_mean"]) == 50.0
    assert float(first["memory_percentage_mean"]) == 1.0
    assert (float(first["gpu_percentage_mean"]), float(first["gpu_memory_percentage_mean"])) == (50.0, 50.0)
    assert first["generator_limited"] == "false"
    assert float(first["TS error rate"]) == pytest.approx(6.6667)


def test_a_file_with_other_columns_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(BadRequest, match="other columns"):
        append_row(result(), path)
    assert path.read_text() == "a,b\n1,2\n"


def test_ticks_are_round_and_within() -> None:
    assert even_ticks(0.0, 23.0) == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert even_ticks(0.0, 0.031) == [0.0, 0.01, 0.02, 0.03]
    assert log_ticks(0.9, 1_200.0) == [1.0, 10.0, 100.0, 1000.0]
    assert log_ticks(3.0, 60.0) == [5.0, 10.0, 20.0, 50.0]


def test_a_gap_breaks_the_line_and_one_point_is_still_drawn() -> None:
    broken = line_chart([ChartLine("p50", "c0", [(0.0, 1.0), (1.0, None), (2.0, 1.0)])], x="s", y="ms")
    assert broken is not None
    assert [mark.attributes["d"].count("M") for mark in broken.marks if mark.attributes.get("class") == "s c0"] == [2]
    lone = line_chart([ChartLine("p50", "c0", [(0.0, 1.0)])], x="s", y="ms")
    assert lone is not None
    assert [mark.title for mark in lone.marks if mark.tag == "circle"] == ["p50: 1 at 0"]
    assert line_chart([ChartLine("p50", "c0", [])], x="s", y="ms") is None
    assert bar_chart([], x="s", y="ms") is None


def test_zeros_are_drawn_too() -> None:
    assert line_chart([ChartLine("errors", "c0", [(0.0, 0.0), (1.0, 0.0)])], x="s", y="n") is not None
    bars = bar_chart([("a", 0.0)], x="s", y="n")
    assert bars is not None
    assert [mark.attributes["height"] for mark in bars.marks if mark.tag == "rect"] == ["0.0"]
