from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from penstock.errors import BadRequest
from penstock.loadtest.report.charts import Dot, heat_map, scatter
from penstock.model_spec import LearnedCalls
from penstock.tune.report import findings
from penstock.tune.report.figures import front
from penstock.tune.report.page import render, write_report
from penstock.tune.report.table import print_result
from penstock.tune.result import Choice, Configuration, ConfigurationVerdict, EngineSettings, Goal, TuneResult, to_json
from tests.unit.loadtest.report.test_reports import read
from tests.unit.tune.made import GOAL, configurations, result

NO_WINNER = replace(result(), configurations=tuple(one for one in configurations() if one.verdict is ConfigurationVerdict.LOST))


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    page = render(result())
    reader = read(page)
    assert reader.links == ["data:,"]
    assert {"script", "img", "iframe", "object"} & set(reader.tags) == set()
    assert re.findall(r"url\(|@import|https?://", page) == []
    for title in (
        "The best configurations",
        "Throughput against latency",
        "Batches back to back",
        "Batch size and slots",
        "Where the winner&#39;s time goes",
        "How long a batch takes",
        "Cost of a million requests",
        "Predicted against measured",
        "Why the others lost",
        "What was measured of each engine",
        "How",
    ):
        assert f"<h2>{title}</h2>" in page


def test_the_winners_learned_calls_are_told_and_of_many_sizes_some() -> None:
    calls = LearnedCalls("padded cost", tuple((float(2**n), 0.001 * 2**n) for n in range(12)), 3.5)
    winner = result().winner
    assert winner is not None
    known = [replace(one, calls=calls) if one.engine == winner.choice.engine else one for one in result().measured]
    found = replace(result(), measured=tuple(known))
    text = findings.learned_calls(found)
    assert text.startswith("calls of 3.5 items on average, chosen by padded cost: 1 takes 1.0 ms, 4 takes 4.0 ms, ")
    assert text.endswith("2,048 takes 2.0 s")
    assert "3.5, by padded cost" in render(found)
    assert findings.learned_calls(result()) == ""
    printed = StringIO()
    print_result(found, Console(file=printed, width=400))
    assert text in printed.getvalue()


def test_a_search_of_thousands_stays_under_a_megabyte() -> None:
    many = tuple(
        replace(one, choice=replace(one.choice, batch_size=size), why=f"{one.why}, said {size}")
        for size in range(1, 60)
        for one in configurations()
        if one.verdict is not ConfigurationVerdict.WINNER
    )
    page = render(replace(result(), configurations=many))
    assert len(many) > 4_000
    assert len(page.encode()) < 1_000_000
    assert " more</td>" in page


def test_what_others_wrote_cannot_become_a_part_of_the_page() -> None:
    evil = "<script>alert(1)</script>'\""
    broken = Configuration(Choice(EngineSettings(runtime=evil)), ConfigurationVerdict.PRUNED, evil)
    base = result(model=evil, note=evil)
    page = render(replace(base, configurations=(*base.configurations, broken), sample=evil, machine={"system": evil}))
    assert "script" not in read(page).tags


def test_the_answer_says_what_to_serve_and_what_it_gives() -> None:
    told = findings.answer(result())
    assert told.startswith("Batches of up to 8 in 2 slots on cpu, torch in bf16, compiled (default), 1 thread each, ")
    assert "31.7/s of 32.3/s offered at a p99 of 989 ms (within 1,000 ms; measured under load)" in told
    assert "Next measured: batch 8, 2 x cpu torch bf16" in told
    assert told in render(result()).replace("&#39;", "'")


def test_without_a_winner_the_answer_says_what_there_is() -> None:
    told = findings.answer(NO_WINNER)
    assert told.startswith(
        "No configuration was shown to keep p99 within 1,000 ms under real load. Not confirmed, the best is batch 2, "
    )
    assert told in render(NO_WINNER)
    strict = findings.answer(replace(NO_WINNER, goal=Goal(limit_s=0.1)))
    assert "Nearest came batch 1, " in strict
    bare = replace(NO_WINNER, configurations=configurations()[-4:], measured=(), capacity=None)
    assert "None of them got as far as a simulation" in render(bare)


def test_a_winner_over_the_limit_is_not_praised() -> None:
    strict = replace(result(), goal=Goal(limit_s=0.1))
    assert "over the limit" in findings.answer(strict)
    row = dict(zip(findings.CASE_COLUMNS, findings.case_rows(strict, most=1)[0], strict=True))
    assert row["in SLO"] == "no"


def test_the_rows_are_those_of_the_case_study_with_the_winner_first() -> None:
    rows = [dict(zip(findings.CASE_COLUMNS, row, strict=True)) for row in findings.case_rows(result(), most=5)]
    assert len(rows) == 5
    first = rows[0]
    assert (first["model"], first["device"], first["precision"], first["batch size"], first["slots"]) == (
        "discs",
        "cpu",
        "bf16, compiled",
        "8",
        "2",
    )
    assert (first["throughput/s"], first["p99, ms"], first["in SLO"], first["figures"]) == (
        "31.7",
        "989",
        "yes",
        "winner, measured",
    )
    assert [row["figures"] for row in rows[1:3]] == ["measured", "simulated"]
    kept = [(row["runtime"], row["precision"], row["batch size"], row["slots"], row["threads"]) for row in rows]
    assert len(set(kept)) == len(kept), "rows that differ by the wait alone are told once"


def test_a_rate_that_is_asked_for_counts_as_a_part_of_the_goal() -> None:
    found = findings.figures_of(configurations()[0])
    assert found is not None
    assert findings.keeps(found, GOAL)
    assert not findings.keeps(found, replace(GOAL, min_rate=1_000.0))


def test_predictions_stand_beside_what_was_measured() -> None:
    rows = findings.predicted_and_confirmed(result())
    assert len(rows) == 5
    assert rows[0][4:8] == ("-2.0 %", "960", "989", "+3.0 %")
    assert rows[1][0].endswith("run again")


def test_losers_with_one_reason_share_a_row() -> None:
    rows = {why: label for label, why in findings.why_lost(result(), most=100)}
    assert rows["it does not run: no bf16 kernels"].startswith("4: ")
    assert len(findings.why_lost(result(), most=3)) == 4


def test_the_front_holds_what_nothing_surpasses() -> None:
    dots = [Dot(x, y, "c0", "") for x, y in ((3.0, 9.0), (1.0, 5.0), (2.0, 4.0), (1.0, 2.0), (4.0, 9.0))]
    assert [(dot.x, dot.y) for dot in front(dots)] == [(1.0, 5.0), (3.0, 9.0)]


def test_plots_of_nothing_are_left_out_and_those_of_one_thing_are_drawn() -> None:
    assert scatter([], x="x", y="y", names=[]) is None
    assert heat_map({}, columns=[], rows=[], x="x", y="y", best=("", "")) is None
    dot = scatter([Dot(5.0, 0.0, "c0", "one")], x="x", y="y", names=[])
    assert dot is not None
    assert [mark.title for mark in dot.marks if mark.tag == "circle"] == ["one"]
    cells = heat_map({("1", "2"): 3.0}, columns=["1", "4"], rows=["2"], x="x", y="y", best=("1", "2"))
    assert cells is not None
    assert [mark.tag for mark in cells.marks].count("rect") == 2
    assert "3" in [mark.text for mark in cells.marks if mark.tag == "text"]


def test_the_report_is_written_from_the_json_too(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "report.html"
    write_report(msgspec.json.decode(to_json(result()), type=TuneResult), path)
    assert path.read_text() == render(result())


def test_a_place_where_nothing_can_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest, match="cannot be written"):
        write_report(result(), tmp_path / "file" / "report.html")
