from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli import exits
from penstock.cli.lazy import StandIn, added, load, show_brackets
from penstock.cli.main import app
from penstock.cli.verbs import ENGINE, merged, verbs, with_options
from penstock.errors import ConfigError
from penstock.extension import Verb
from tests.command import called_here
from tests.pages import cli_page

ROOT = Path(__file__).parents[3]
HEAVY = ("redis", "celery", "kombu", "fastapi", "starlette", "pydantic", "httpx", "httpx2", "tenacity", "numpy", "msgspec")


def penstock(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Call the command here; as a process it is run by the tests of `--help`, of completion and of `penstock up`."""
    return called_here(*arguments, cwd=cwd, env={**os.environ, **(env or {})})


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom penstock.cli import main\nsys.argv = ['penstock', '--help']\n"
        "try:\n    main.main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr.strip() == "[]"


def test_help_lists_every_command_and_the_exit_codes() -> None:
    command = [sys.executable, "-m", "penstock", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0
    assert [name for name in verbs() if f" {name} " not in done.stdout] == []
    assert "Exit codes" in done.stdout


@pytest.mark.parametrize("name", list(verbs()))
def test_every_command_has_help(name: str) -> None:
    # Each command is loaded as it is called; another process for each would cost more than all of the commands.
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    assert f"penstock {name}" in shown.stdout


def test_no_help_loses_a_word_in_brackets() -> None:
    # Regression: Typer took `[serve]` for a style of Rich and left it out.
    for command in cli_page.commands():
        real = command_of(command.words)
        for part in (real, *real.params):
            part.help = f"{part.help or ''} pip install 'penstock[serve]' <ok> [/path]"
        show_brackets(real)
        shown = help_of(real)
        texts = [part for part in (real, *real.params) if not getattr(part, "hidden", False)]
        assert len(re.findall(r"penstock\[serve\]", shown)) == len(texts), shown
        assert shown.count("[/path]") == len(texts)


def test_no_help_of_ours_loses_a_word_in_brackets() -> None:
    missing = []
    for command in cli_page.commands():
        real = command_of(command.words)
        shown = help_of(real)
        texts = [real.help or "", *(one.help or "" for one in real.params if not getattr(one, "hidden", False))]
        missing += [word for text in texts for word in re.findall(r"\S*\[\S*", text) if word not in shown]
    assert missing == []


def test_an_error_of_usage_shows_brackets() -> None:
    done = penstock("call", "m", "--priority", "[serve]")
    assert (done.returncode, "[serve]" in done.stderr) == (exits.USAGE, True), done.stderr


def command_of(words: str) -> Any:
    """The loaded command of these words, built anew: a test may change its texts."""
    found: Any = typer.main.get_command(app)
    for word in words.split():
        one = found.commands[word]
        found = one.loaded() if isinstance(one, StandIn) else one
    return found


def help_of(command: Any) -> str:
    """Its `--help`, so wide that no text is broken."""
    with mock.patch("typer.rich_utils.MAX_WIDTH", 2_000), contextlib.redirect_stdout(io.StringIO()) as stdout:
        command.get_help(command.context_class(command, info_name="penstock"))
    return stdout.getvalue()


@pytest.mark.parametrize("arguments", [["run", "--help"], ["run"]])
def test_help_of_run_shows_its_options_and_its_other_commands(arguments: list[str]) -> None:
    done = penstock(*arguments)
    for word in ("--max-failed", "--carry", "--output", "resume", "show", "cancel"):
        assert word in done.stdout, done.stdout


def test_an_extension_brings_a_verb_and_one_of_a_group_and_neither_is_loaded_before_it_is_called() -> None:
    own, of_group = Verb("mine.cli:app", "Mine."), Verb("mine.nested:app", "Nested.")
    found = merged(ENGINE, [{"mine": own, "jobs mine": of_group}])
    assert (found["mine"], found["jobs"].more) == (own, {"mine": of_group})
    assert {name: found[name] for name in ENGINE if name != "jobs"} == {name: ENGINE[name] for name in ENGINE if name != "jobs"}
    group = load(found["jobs"])
    assert "Nested." in help_of(group)
    with pytest.raises(ConfigError, match=r"mine\.nested:app"):
        group.commands["mine"].loaded()


@pytest.mark.parametrize("words", ["jobs", "nothing here"])
def test_a_verb_that_is_there_and_one_without_its_group_are_refused(words: str) -> None:
    with pytest.raises(ConfigError, match=repr(words)):
        merged(ENGINE, [{words: Verb("mine.cli:app", "Mine.")}])


def test_a_verb_that_its_group_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="has: list"):
        load(merged(ENGINE, [{"jobs list": Verb("mine.cli:app", "Mine.")}])["jobs"])


mine = typer.Typer(add_completion=False)


@mine.command()
def show(context: typer.Context, name: str) -> None:
    typer.echo(json.dumps({"name": name, **added(context)}))


def options_of_mine(
    colour: Annotated[str | None, typer.Option(help="Its colour.")] = None,
    sizes: Annotated[list[str] | None, typer.Option("--size")] = None,
) -> dict[str, Any]:
    return {"colour": colour, "sizes": sizes or []}


def options_twice(colour: Annotated[str, typer.Option()] = "red") -> dict[str, Any]:
    return {"more": colour}


def test_an_extension_adds_options_to_a_verb_and_what_they_say_is_found_in_its_context() -> None:
    verb = Verb(f"{__name__}:mine", "Mine.", options={"": (f"{__name__}:options_of_mine",)})
    command = load(verb)
    assert "Its colour." in help_of(command)
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        for words in (["a", "--colour", "red", "--size", "1", "--size", "2"], ["b"]):
            command.main(words, standalone_mode=False)
    found = [json.loads(line) for line in stdout.getvalue().splitlines()]
    assert found == [{"name": "a", "colour": "red", "sizes": ["1", "2"]}, {"name": "b", "colour": None, "sizes": []}]
    with pytest.raises(ConfigError, match="has: colour"):
        load(replace(verb, options={"": (f"{__name__}:options_of_mine", f"{__name__}:options_twice")}))


def test_options_go_to_the_verb_that_their_extension_names() -> None:
    found = with_options(ENGINE, [{"call": "a:b", "keys new": "a:c"}, {"call": "d:e"}])
    assert (found["call"].options, found["keys"].options) == ({"": ("a:b", "d:e")}, {"new": ("a:c",)})
    with pytest.raises(ConfigError, match="options of the verb 'nothing'"):
        with_options(ENGINE, [{"nothing": "a:b"}])


def test_a_mistyped_command_gets_a_suggestion_and_the_code_for_usage() -> None:
    done = penstock("modles")
    assert done.returncode == exits.USAGE
    assert "'models'" in done.stderr


def test_an_unreachable_gateway_is_reported_in_words_without_a_traceback() -> None:
    done = penstock("models", "--url", "http://127.0.0.1:9")
    assert done.returncode == exits.UNREACHABLE
    assert "penstock up" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_json_errors_are_json_too() -> None:
    done = penstock("models", "--url", "http://127.0.0.1:9", "--json")
    assert '"exit_code": 3' in done.stderr
    assert done.stdout == ""


def test_every_command_has_json_but_those_that_the_docs_except() -> None:
    without = {name for name, entry in verbs().items() if not all(map(_has_json, _commands(entry)))}
    assert without == {"flower", "gateway", "runner", "worker"}
    assert "All commands have it but `flower`, `gateway`, `runner` and `worker`" in (
        ROOT / "docs" / "reference" / "cli.md"
    ).read_text("utf-8")


def test_with_json_wrong_usage_is_json_too() -> None:
    done = penstock("models", "--json", "--nonsense")
    assert (done.returncode, done.stdout) == (exits.USAGE, "")
    error = json.loads(done.stderr)
    assert (error["exit_code"], error["error"]["code"]) == (exits.USAGE, "usage")
    assert "--nonsense" in error["error"]["detail"]


def test_with_json_a_failed_check_keeps_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[gateway]\nport = -1\n")
    assert penstock("doctor", "--json", cwd=tmp_path).returncode == exits.FAILED


@pytest.mark.parametrize("command", [("config", "--check"), ("up",), ("worker", "--redis-url", "redis://127.0.0.1:9")])
def test_a_missing_model_file_is_reported_before_anything_starts(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "penstock.toml").write_text("[models.a]\nsource = 'a.py'\n[models.b]\nsource = 'b.onnx'\n")
    done = penstock(*command, cwd=tmp_path)
    assert done.returncode == exits.CONFIG
    assert [name for name in ("a.py", "b.onnx") if f"{tmp_path}/{name}: no such file" not in done.stderr] == []


def test_a_gateway_starts_where_the_model_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[models.a]\nsource = 'a.py'\n")
    done = penstock("gateway", cwd=tmp_path)
    assert "no Redis is configured" in done.stderr, "it got as far as looking for its store"


def test_the_shell_is_told_how_to_complete_and_what() -> None:
    # The command runs within a shell, because it finds the kind of shell among its parent processes.
    command = f"{shlex.quote(sys.executable)} -m penstock --show-completion; exit $?"
    script = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert (script.returncode, "_PENSTOCK_COMPLETE=complete_bash" in script.stdout) == (0, True), script.stderr
    completion = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": "penstock wo", "COMP_CWORD": "1"}
    completed = subprocess.run(
        [sys.executable, "-m", "penstock"],
        env={**os.environ, **completion},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert completed.stdout.split() == ["worker", "workers"]


def _commands(verb: Verb) -> list[Any]:
    command = load(verb)
    found = list(command.commands.values()) if hasattr(command, "commands") else [command]
    return [one.loaded() if isinstance(one, StandIn) else one for one in found]


def _has_json(command: Any) -> bool:
    return any("--json" in parameter.opts for parameter in command.params)
