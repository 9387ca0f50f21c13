from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli.exits import StartError
from penstock.cli.state import check_readiness, note_of_elsewhere, reason_of, state_lock, write_note
from penstock.running_stack import RunningStack, running_gateway, running_stack, state_dir_of

STACK = RunningStack(pid=os.getpid(), url="http://127.0.0.1:8080", redis_url="unix:///x")


def test_a_running_stack_is_found_by_its_note(tmp_path: Path) -> None:
    with state_lock(tmp_path) as note:
        write_note(note, STACK)
        assert running_stack(tmp_path) == STACK
    assert running_stack(tmp_path) is None


def test_a_folder_serves_one_stack_and_says_which(tmp_path: Path) -> None:
    with state_lock(tmp_path) as note:
        write_note(note, STACK)
        with pytest.raises(StartError, match=r"127\.0\.0\.1:8080") as caught, state_lock(tmp_path):
            pass
    assert "--state-dir" in str(caught.value.hint)


def test_a_note_left_by_a_crash_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text('{"pid": 1, "url": "http://x", "redis_url": "unix:///x"}')
    assert running_stack(tmp_path) is None


def test_no_folder_means_nothing_runs(tmp_path: Path) -> None:
    assert running_stack(tmp_path / "nowhere") is None


def test_the_state_folder_is_found_where_up_would_put_it(tmp_path: Path) -> None:
    assert state_dir_of(tmp_path, {}) == tmp_path / ".penstock"
    assert state_dir_of(tmp_path, {"PENSTOCK_STORE__STATE_DIR": "/s"}) == Path("/s")
    (tmp_path / "penstock.toml").write_text('[store]\nstate_dir = "jobs"\n')
    assert state_dir_of(tmp_path, {}) == tmp_path / "jobs"
    (tmp_path / "penstock.toml").write_text("broken [")
    assert state_dir_of(tmp_path, {}) == tmp_path / ".penstock"
    (tmp_path / "other").mkdir()
    assert state_dir_of(tmp_path, {"PENSTOCK_CONFIG": "other/penstock.toml"}) == tmp_path / "other" / ".penstock"


def test_a_run_that_has_a_store_and_no_gateway_is_no_gateway(tmp_path: Path) -> None:
    with state_lock(tmp_path / ".penstock") as note:
        write_note(note, RunningStack(os.getpid(), "", "unix:///x"))
        assert running_gateway(tmp_path, {}) is None
        write_note(note, STACK)
        assert running_gateway(tmp_path, {}) == STACK.url


def test_a_stack_whose_settings_lie_elsewhere_is_found_where_it_was_started(tmp_path: Path) -> None:
    """Regression: `penstock up SUB/penstock.toml` printed that it was ready, and `penstock jobs` said that nothing ran."""
    elsewhere = tmp_path / "service" / ".penstock"
    with state_lock(elsewhere), note_of_elsewhere(elsewhere, tmp_path) as note:
        assert note is not None
        write_note(note, STACK)
        assert running_gateway(tmp_path, {}) == STACK.url
        with note_of_elsewhere(tmp_path / "another", tmp_path) as second:
            assert second is None, "the first stack keeps the note"
        assert running_gateway(tmp_path, {}) == STACK.url
        with state_lock(tmp_path / ".penstock") as own:
            write_note(own, replace(STACK, url="http://127.0.0.1:9999"))
            assert running_gateway(tmp_path, {}) == "http://127.0.0.1:9999", "what has its state here comes first"
    assert running_gateway(tmp_path, {}) is None


def test_nothing_stays_of_a_note_but_what_others_put_beside_it(tmp_path: Path) -> None:
    with note_of_elsewhere(tmp_path / "service", tmp_path):
        assert (tmp_path / ".penstock" / "up-elsewhere.json").exists()
    assert list(tmp_path.iterdir()) == []
    with note_of_elsewhere(tmp_path / ".penstock", tmp_path) as note:
        assert note is None, "it would be found anyway"
    with note_of_elsewhere(tmp_path / "service", tmp_path):
        (tmp_path / ".penstock" / "up.json").touch()
    assert [file.name for file in (tmp_path / ".penstock").iterdir()] == ["up.json"]


def test_a_gateway_that_does_not_listen_is_not_ready() -> None:
    found = check_readiness("http://127.0.0.1:9")
    assert not found.ready
    assert "does not listen" in found.why


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"detail": "not ready", "errors": [{"pointer": "square", "detail": "still loading"}]}', "square: still loading"),
        (b'{"detail": "not ready"}', "not ready"),
        (b"<html>", ""),
        (b"[]", ""),
    ],
)
def test_what_is_missing_is_read_from_the_body(content: bytes, why: str) -> None:
    assert reason_of(content) == why


def test_a_folder_that_was_there_before_gets_no_gitignore(tmp_path: Path) -> None:
    with state_lock(tmp_path), state_lock(tmp_path / "made"):
        pass
    assert not (tmp_path / ".gitignore").exists()
    assert (tmp_path / "made" / ".gitignore").read_text() == "*\n"
