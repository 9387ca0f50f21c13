"""What the command says where an extra of penstock-inference is not installed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.cli import exits
from penstock.cli.entry import SERVER_VERBS
from penstock.cli.verbs import ENGINE
from penstock.distribution import MODULES, explained
from penstock.errors import ConfigError
from tests.refusing import command_without

BOTH = (*MODULES["cli"], *MODULES["serve"])


def called(missing: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    program = command_without(missing, *arguments)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("verb", sorted(SERVER_VERBS))
def test_a_verb_of_the_server_says_in_one_sentence_what_to_install(verb: str) -> None:
    done = called(MODULES["serve"], verb)
    assert (done.returncode, done.stdout) == (exits.CONFIG, "")
    first, then = done.stderr.splitlines()
    assert first.startswith(f"error: penstock {verb} needs the server: celery, ")
    assert then == "  next: pip install 'penstock-inference[serve]'"


@pytest.mark.parametrize(
    "arguments",
    [("call", "square", "4"), ("jobs", "list"), ("models",), ("workers",), ("audit",), ("status",), ("run", "list")],
)
def test_a_verb_that_asks_a_gateway_needs_no_server(arguments: tuple[str, ...]) -> None:
    done = called(MODULES["serve"], *arguments, "--url", "http://127.0.0.1:9")
    assert done.returncode == exits.UNREACHABLE, done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"), [(("call", "square", "4"), "cli"), (("up",), "serve"), (("--help",), "cli"), ((), "cli")]
)
def test_with_the_client_alone_the_command_says_what_to_install(arguments: tuple[str, ...], extra: str) -> None:
    done = called(BOTH, *arguments)
    assert (done.returncode, done.stdout) == (exits.CONFIG, "")
    assert done.stderr.splitlines()[1] == f"  next: pip install 'penstock-inference[{extra}]'"


def test_with_json_that_is_json_too() -> None:
    done = called(BOTH, "up", "--json")
    told = json.loads(done.stderr)
    assert (told["exit_code"], told["error"]["hint"]) == (exits.CONFIG, "pip install 'penstock-inference[serve]'")


def test_each_verb_of_the_server_is_a_verb() -> None:
    assert set(ENGINE) >= SERVER_VERBS


def test_a_module_that_a_verb_misses_later_is_explained_and_that_of_a_user_is_not() -> None:
    ours, own = (ModuleNotFoundError("", name=name) for name in ("redis.exceptions", "my_model"))
    assert isinstance(explained(ours), ConfigError)
    assert explained(own) is own
