"""The context that handlers of archives get, by itself."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.extensions.torchserve.child.context import RequestHeaders, RequestProcessor, TorchServeContext
from penstock.extensions.torchserve.child.handler import gpu_index


def context(*headers: dict[str, str]) -> TorchServeContext:
    made = TorchServeContext("mine", "/models/mine", {"model": {}}, 4, 0)
    made.begin([f"r-{place}" for place in range(len(headers))], [RequestHeaders(one) for one in headers])
    return made


def test_headers_are_found_in_any_case_and_names_of_fields_as_they_are() -> None:
    headers = RequestHeaders({"x-tenant": "blue", "Image": {"content-type": "image/png"}})
    assert headers["X-Tenant"] == headers.get("x-tenant") == headers.get("X-TENANT") == "blue"
    assert headers["Image"] == {"content-type": "image/png"}
    assert "X-TENANT" in headers
    assert "image" not in headers
    assert 1 not in headers  # type: ignore[comparison-overlap]
    assert headers.get("absent") is None
    assert headers.get("Absent", "x") == "x"
    with pytest.raises(KeyError):
        headers["Absent"]


def test_a_status_for_a_request_that_is_not_there_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    made = context({})
    with caplog.at_level(logging.WARNING):
        made.set_response_status(500, "x", 3)
    assert made.get_response_status(0) == (200, None)
    assert "no request 3" in caplog.text


def test_all_responses_get_a_status_at_once_and_each_its_own_headers() -> None:
    made = context({}, {})
    made.set_all_response_status(404, "gone")
    made.set_response_content_type(1, "image/png")
    assert [made.get_response_status(idx) for idx in (0, 1)] == [(404, "gone")] * 2
    assert [made.get_response_content_type(idx) for idx in (0, 1)] == [None, "image/png"]
    assert made.get_response_headers(1) == {"content-type": "image/png"}
    assert made.request_processor[1].get_response_header("content-type") == "image/png"


def test_each_call_begins_without_what_the_last_one_said() -> None:
    made = context({"a": "1"})
    made.cache = ["kept"]  # type: ignore[attr-defined]
    made.set_all_response_status(500)
    made.begin(["r-9"], [RequestHeaders({"a": "2"})])
    assert (made.get_request_id(), made.get_request_header(0, "A"), made.get_response_status(0)) == ("r-9", "2", (200, None))
    assert made.cache == ["kept"]  # type: ignore[attr-defined]


def test_a_request_processor_can_be_made_of_plain_headers() -> None:
    own = RequestProcessor({"a": "1"})
    assert own.get_request_properties() == {"a": "1"}
    assert own.is_untouched
    own.report_status(201)
    assert not own.is_untouched


@pytest.mark.parametrize(("device", "found"), [("cpu", None), ("cuda", 0), ("cuda:0", 0), ("cuda:3", 3)])
def test_the_gpu_is_its_place_among_those_that_the_process_sees(device: str, found: int | None) -> None:
    assert gpu_index(device) == found


def test_other_models_load_nothing_of_this(tmp_path: Path) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text("from penstock import model\n@model\ndef plain(x: int) -> int: return x\n")
    program = (
        f"import sys\nfrom penstock.handlers.load import load\nload({str(plain)!r}, 'm')\n"
        "own = ('torchserve.child', 'archives.opening')\n"
        "print([name for name in sys.modules if name == 'ts' or any(part in name for part in own)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
