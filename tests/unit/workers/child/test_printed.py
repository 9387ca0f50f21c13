from __future__ import annotations

import io
from pathlib import Path

import pytest

from penstock.workers.child.printed import MarkedOutput, Speaker, serving
from penstock.workers.ipc.said import SaidLine, read_line


def said(file: Path) -> list[SaidLine]:
    return [read_line(line) for line in file.read_bytes().splitlines()]


def test_what_is_printed_names_the_items_in_the_handlers_hands(tmp_path: Path) -> None:
    speaker = Speaker()
    running = speaker.running
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        out = MarkedOutput(file, speaker)
        print("loading", file=out)
        running.batch, running.places = 3, [0, 1]
        print("both", "items", file=out)
        running.places = [1]
        out.write("the")
        out.write(" second\n")
        running.batch = 0
        assert print("idle", file=out) is None
        out.flush()
    assert said(tmp_path / "out") == [
        SaidLine("loading"),
        SaidLine("both items", 3, 0),
        SaidLine("the second", 3, 2),
        SaidLine("idle"),
    ]


def test_a_thread_that_prepares_a_batch_speaks_for_that_one(tmp_path: Path) -> None:
    speaker = Speaker()
    speaker.running.batch, speaker.running.places = 3, [0]
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        out = MarkedOutput(file, speaker)
        serving.batch = 4
        try:
            print("preparing", file=out)
        finally:
            serving.batch = 0
        print("running", file=out)
    assert said(tmp_path / "out") == [SaidLine("preparing", 4, 0), SaidLine("running", 3, 1)]


def test_the_output_is_what_code_expects_of_one(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        out = MarkedOutput(file, Speaker())
        assert (out.encoding, out.fileno(), out.isatty()) == ("utf-8", file.fileno(), False)
        assert isinstance(out, io.TextIOWrapper)
        assert out.write("größe\n") == 6


def test_of_a_warm_up_the_first_lines_are_passed_on_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker = Speaker()
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        out = MarkedOutput(file, speaker)
        monkeypatch.setattr("sys.stdout", out)
        with speaker.warming_up():
            for number in range(30):
                print("hello", number)
        print("served")
        out.flush()
    lines = [line.text for line in said(tmp_path / "out")]
    assert lines == [*(f"warm-up: hello {n}" for n in range(3)), "warm-up: 27 more lines like these", "served"]


def test_a_quiet_warm_up_adds_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker = Speaker()
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdout", MarkedOutput(file, speaker))
        with speaker.warming_up():
            print("hello")
        print("served", flush=True)
    assert [line.text for line in said(tmp_path / "out")] == ["warm-up: hello", "served"]
