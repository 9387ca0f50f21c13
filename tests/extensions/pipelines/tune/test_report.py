"""What a search for a pipeline says: the table, the answer, the page; and that its result survives its JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from penstock.errors import BadRequest
from penstock.extensions.pipelines.tune.report import (
    pipeline_answer,
    pipeline_rows,
    render_pipeline,
    text_lines,
    write_pipeline_report,
)
from penstock.extensions.pipelines.tune.result import pipeline_json, read_pipeline_result
from penstock.tune.result import ConfigurationVerdict
from tests.extensions.pipelines.tune.made import result


def test_the_table_has_a_row_per_model_and_the_figures_of_the_whole_in_the_first() -> None:
    rows = pipeline_rows(result())
    assert [(row[0], row[4], row[7], row[-1]) for row in rows] == [
        ("detector", "2", "12", "winner, measured"),
        ("pose", "1", "", ""),
        ("detector", "1", "8", "as declared, measured"),
        ("pose", "1", "", ""),
        ("detector", "4", "11", "simulated"),
        ("pose", "1", "", ""),
    ]


def test_the_answer_names_each_model_and_compares_with_the_settings_of_today() -> None:
    said = pipeline_answer(result())
    assert said.startswith("detector: batches of up to 2 in one slot on cpu")
    assert "pose: one request at a time" in said
    assert "12/s of 12/s offered, at a p99 of 90 ms (within 100 ms)" in said
    assert "As declared: 8/s, -33.3 %" in said
    assert "note: pose: a note" in list(text_lines(result()))


def test_without_a_winner_the_answer_says_what_came_nearest() -> None:
    lost = replace(
        result(), configurations=tuple(replace(one, verdict=ConfigurationVerdict.LOST) for one in result().configurations)
    )
    assert pipeline_answer(lost).startswith(
        "No configuration was shown to keep p99 within 100 ms under real load. Nearest came"
    )
    assert "the notes say why" in pipeline_answer(replace(result(), configurations=()))


def test_the_page_holds_the_table_the_engines_and_what_was_searched(tmp_path: Path) -> None:
    page = render_pipeline(result())
    for text in ("drawings: p99 within 100 ms", "as declared, measured", "detector: cpu fp32 1 threads", "pose: batch_size"):
        assert text in page
    write_pipeline_report(result(), tmp_path / "deep" / "r.html")
    assert (tmp_path / "deep" / "r.html").read_text() == page
    with pytest.raises(BadRequest, match="cannot be written"):
        write_pipeline_report(result(), tmp_path / "deep" / "r.html" / "x.html")


def test_a_result_is_read_again_as_it_was_written() -> None:
    assert read_pipeline_result(pipeline_json(result())) == result()
    with pytest.raises(msgspec.DecodeError):
        read_pipeline_result(b'{"model": "x"}')
