from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadRequest
from penstock.loadtest.observed.stack_facts import ModelFacts
from penstock.loadtest.options import (
    LoadOptions,
    adapter_for,
    bodies_for,
    check_writable,
    describe_load,
    server_address,
    shape_of,
)
from penstock.loadtest.workload import Arrivals, Kind


def test_a_url_is_an_endpoint_and_a_name_a_model() -> None:
    assert LoadOptions("http://h/p").kind is Kind.HTTP
    assert LoadOptions("square").kind is Kind.PENSTOCK
    assert LoadOptions("square", target=Kind.OIP).kind is Kind.OIP


def test_left_to_itself_a_load_is_open_at_100_a_second_for_30_s_after_5() -> None:
    shape = shape_of(LoadOptions("m"))
    assert (shape.duration_s, shape.warm_up_s, shape.concurrency, shape.arrivals) == (30.0, 5.0, None, Arrivals.POISSON)
    assert [(part.start, part.end) for part in shape.profile] == [(100.0, 100.0)]


def test_a_trace_sets_its_own_length(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("5\n6.5\n9\n")
    shape = shape_of(LoadOptions("m", arrivals=f"trace:{path}"))
    assert (shape.trace, shape.warm_up_s) == ((0.0, 1.5, 4.0), 0.0)
    assert shape.duration_s == pytest.approx(4.0)
    assert shape.duration_s > 4.0, "the last call is one of the measured"
    assert describe_load(LoadOptions("m", arrivals=f"trace:{path}"), shape)["trace"] == str(path)


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        (LoadOptions("m", closed=4, rate="5"), "as fast as answers come"),
        (LoadOptions("m", closed=1, processes=2), "cannot share"),
        (LoadOptions("m", arrivals="bursts"), "unknown"),
        (LoadOptions("m", arrivals="trace:/nowhere"), "cannot be read"),
    ],
)
def test_what_does_not_go_together_is_reported(asked: LoadOptions, match: str) -> None:
    with pytest.raises(BadRequest, match=match):
        shape_of(asked)


def test_a_key_goes_to_penstock_alone() -> None:
    mine = adapter_for(LoadOptions("m", api_key="id.secret"), "http://h", has_body=True)
    strange = adapter_for(LoadOptions("http://h/p", api_key="id.secret"), "http://h/p", has_body=True)
    assert mine.headers == {"Authorization": "Bearer id.secret"}
    assert strange.headers == {}
    assert "secret" not in str(describe_load(LoadOptions("m", api_key="id.secret"), shape_of(LoadOptions("m"))))


def test_headers_are_checked_before_they_could_break_a_request() -> None:
    assert adapter_for(LoadOptions("http://h/p", headers=("X-A: 1",)), "http://h/p", has_body=False).headers == {"X-A": "1"}
    for line in ("X-A", ": 1", "X-A: 1\r\nX-B: 2"):
        with pytest.raises(BadRequest, match="cannot be sent"):
            adapter_for(LoadOptions("http://h/p", headers=(line,)), "http://h/p", has_body=False)


def test_a_foreign_server_needs_its_address_and_its_body() -> None:
    with pytest.raises(BadRequest, match="needs its address"):
        server_address(LoadOptions("m", target=Kind.TORCHSERVE), None)
    with pytest.raises(BadRequest, match="no schema"):
        bodies_for(LoadOptions("m", target=Kind.TORCHSERVE, body="schema"), "http://h", ModelFacts())
    assert bodies_for(LoadOptions("http://h/p"), "http://h/p", ModelFacts()) == []


def test_a_report_that_could_not_be_written_is_refused_before_the_load(tmp_path: Path) -> None:
    check_writable(tmp_path / "report.html")
    for path in (tmp_path, tmp_path / "not" / "there.html"):
        with pytest.raises(BadRequest, match="cannot be written"):
            check_writable(path)
