from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadRequest
from penstock.tune.measuring.notebook import Notebook, SearchSubject
from penstock.tune.result import Overheads


def test_what_was_put_is_there_for_the_next_search(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    first = Notebook(path)
    assert first.open("this") == 0
    first.put("overheads", "", Overheads(claim_s=0.001))
    second = Notebook(path)
    assert second.open("this") == 1
    assert second.get("overheads", "", Overheads) == Overheads(claim_s=0.001)


def test_a_file_about_something_else_is_refused(tmp_path: Path) -> None:
    Notebook(tmp_path / "s").open("this")
    with pytest.raises(BadRequest, match="another model"):
        Notebook(tmp_path / "s").open("that")


def test_a_last_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "s"
    book = Notebook(path)
    book.open("this")
    book.put("overheads", "", Overheads())
    path.write_bytes(path.read_bytes()[:-20])
    assert Notebook(path).open("this") == 0


def test_a_changed_model_file_is_another_question(tmp_path: Path) -> None:
    source = tmp_path / "m.py"
    source.write_text("a")
    before = SearchSubject("m", {"source": f"{source}:M"}, ()).digest()
    source.write_text("b")
    assert SearchSubject("m", {"source": f"{source}:M"}, ()).digest() != before
