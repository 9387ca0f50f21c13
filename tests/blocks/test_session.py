"""Pages of a few lines: what runs, what is compared, and what a page that is wrong is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blocks.page import steps_of
from tests.blocks.running import Outcome, run_page


def run(folder: Path, *blocks: str) -> Outcome:
    page = folder / "page.md"
    page.write_text("\n".join(blocks))
    return run_page(page)


def block(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```", ""])


def test_files_commands_and_python_share_a_folder_and_a_shell(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        block("python", "# numbers.py", "three = 3"),
        "<!-- run\nexport LEFT=4\n-->",
        block("bash", "mkdir inner  # a remark", "mv numbers.py inner", "cd inner", "for n in 1 2; do", "  touch $n", "done"),
        block(
            "console",
            "$ ls \\",
            "  -1",
            "1",
            "2",
            "...",
            "$ echo $LEFT",
            "4",
            "$ cat missing",
            "cat: missing: No such file ...",
        ),
        block("python", "import os", "from numbers import three"),
        block("python", "print(three, os.environ['LEFT'])  # 3 4"),
        block("text", "3 4"),
        block("bash", """echo '{"y": 16, "id": "01m8592sas01e4e0557kbqg95z"}'"""),
        block("json", '{"y": 16, "id": "01k9..."}'),
    )
    assert outcome.failure == ""
    assert outcome.done == {"file": 1, "commands": 3, "python": 2, "output": 1, "json": 1}
    assert outcome.compared == 6


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (block("bash", "true", "false"), "page.md, line 3: false\nit ended with the exit status 1"),
        (block("console", "$ echo 8", "9"), "line 2: echo 8\n--- shown\n+++ got\n"),
        (block("python", "x = 1", "print(x)  # 2"), "line 3: the print\n"),
        (block("python", "if False:", "    print(1)  # 1"), "(nothing: the line was not reached)"),
        (block("python", "import nothing_like_it"), "No module named 'nothing_like_it'"),
        (block("toml", "[models.a]", "no_such_key = 1"), "line 2: these settings are refused"),
        (block("json", "{}"), "line 2: the block before printed no JSON"),
        (block("", "x"), "line 1: a block of the language '' cannot be run"),
        (block("bash", "echo '"), "line 2: the command does not end in its block"),
        ("<!-- not run: no time -->\n" + block("bash", "x"), "line 1: 'no time' is no reason"),
        ("<!-- not run: a fragment -->\n" + block("python", "def"), "line 3: the block is not python"),
        (block("console", "$ penstock up missing.py"), "it stays, but it never printed"),
    ],
)
def test_a_page_that_is_wrong_is_told_where_and_why(tmp_path: Path, wrong: str, told: str) -> None:
    assert told in run(tmp_path, wrong).failure


def test_a_command_that_stays_is_awaited_and_ends_with_ctrl_c_or_with_its_page(tmp_path: Path) -> None:
    serve, ask = "python -m http.server 8080", "curl -sI localhost:8080 | head -1"
    outcome = run(
        tmp_path,
        block("console", f"$ {serve}", "Serving HTTP on ...", "^C", "...", "Keyboard interrupt received, exiting."),
        block("bash", f"{serve} &"),
        block("console", f"$ {ask}", "HTTP/1.0 200 OK"),
    )
    assert outcome.failure == ""


def test_hidden_commands_and_hidden_python_run_and_are_not_counted(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        "<!-- run\npython -m http.server 8080\n^C\npython -m http.server 8080\n-->",
        "<!-- run python\nfour = 4\n-->",
        block("python", "print(four)  # 4"),
    )
    assert outcome.failure == ""
    assert outcome.done == {"python": 1}


def test_ctrl_c_without_a_command_that_stays_is_a_fault_of_the_page(tmp_path: Path) -> None:
    assert "ends the last command that stays, and none does" in run(tmp_path, "<!-- run\n^C\n-->").failure


def test_a_comment_belongs_to_the_block_right_after_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    note = "<!-- not run: installs -->"
    texts = [
        note,
        "",
        block("bash", "a"),
        note,
        "A sentence.",
        "",
        block("bash", "b"),
        "- An entry",
        "",
        f"  {note}",
        "  ```bash",
        "  c",
        "  ```",
    ]
    page.write_text("\n".join(texts))
    assert [step.kind for step in steps_of(page)] == ["left out", "commands", "left out"]
