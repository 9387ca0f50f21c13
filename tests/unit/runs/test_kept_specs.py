"""A run that was begun by an earlier tree goes on under this one: what its journal says of it is still the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.run import RunPart, RunSpec
from penstock.runs.journal import Header, Journal
from penstock.runs.run_files import spec_digest

KEPT = json.loads(Path(__file__).with_name("kept_specs.json").read_text("utf-8"))


class LaterSpec(RunSpec, frozen=True, kw_only=True):
    """A spec of a tree that has one member more."""

    pace_rows: int = 0
    notes: dict[str, str] = msgspec.field(default_factory=dict)


class LaterPart(RunPart, frozen=True, kw_only=True):
    """A part of a run, of a tree that has one member more."""

    shelf: str = ""


@pytest.mark.parametrize("kept", KEPT, ids=["every member set", "only what must be"])
def test_a_spec_keeps_its_digest_for_ever(kept: dict[str, Any]) -> None:
    """The file holds specs as trees have stored them, with the digests in their journals. Add to it, and change nothing."""
    assert spec_digest(msgspec.convert(kept["spec"], RunSpec)) == kept["digest"]


@pytest.mark.parametrize("kept", KEPT, ids=["every member set", "only what must be"])
def test_a_spec_keeps_its_digest_when_specs_get_another_member(kept: dict[str, Any]) -> None:
    """Regression: a run under way ended `failed`, `conflict` when a runner of a newer tree took it, because the digest had the
    defaults of all members, and so changed with each new one.
    """
    assert spec_digest(msgspec.convert(kept["spec"], LaterSpec)) == kept["digest"]


def test_a_new_member_that_is_set_changes_the_digest() -> None:
    spec = msgspec.convert(KEPT[1]["spec"], LaterSpec)
    assert spec_digest(msgspec.structs.replace(spec, pace_rows=5)) != KEPT[1]["digest"]


def test_a_part_resumes_under_a_tree_whose_parts_have_another_member(tmp_path: Path) -> None:
    """Regression: the header of a part's journal holds the part, and was compared with the members of the newer tree."""
    part = {"number": 1, "first": 0, "stop": 2, "begin": {"byte": 7}, "end": 99, "rows": 5, "listing": "l", "identity": "i"}
    journal = Journal(tmp_path / "journal.jsonl")
    journal.create(_header({"files": [], "part": part}))
    journal.close()
    later = msgspec.to_builtins(msgspec.convert(part, LaterPart))
    assert journal.changed(_header({"files": [], "part": later})) == []
    assert journal.changed(_header({"files": [], "part": later | {"end": 98}})) != []


def _header(identity: dict[str, Any]) -> Header:
    return Header(run_id="r1", spec_digest="d", input=identity, model="m", version="1")
