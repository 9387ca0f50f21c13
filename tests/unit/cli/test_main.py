from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.cli import exits
from penstock.cli.main import Penstock

HEAVY = ("redis", "celery", "kombu", "fastapi", "starlette", "pydantic", "httpx", "httpx2", "tenacity", "numpy", "msgspec")


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments], capture_output=True, text=True, timeout=30, check=False
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom penstock.cli import main\nsys.argv = ['penstock', '--help']\n"
        "try:\n    main.main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr.strip() == "[]"


def test_help_lists_every_command_and_the_exit_codes() -> None:
    done = penstock("--help")
    assert done.returncode == 0
    assert [name for name in Penstock.table if f" {name} " not in done.stdout] == []
    assert "Exit codes" in done.stdout


@pytest.mark.parametrize("name", list(Penstock.table))
def test_every_command_has_help(name: str) -> None:
    assert penstock(name, "--help").returncode == 0


def test_a_mistyped_command_gets_a_suggestion_and_the_code_for_usage() -> None:
    done = penstock("modles")
    assert done.returncode == exits.USAGE
    assert "'models'" in done.stderr


def test_an_unreachable_gateway_is_told_in_words_without_a_traceback() -> None:
    done = penstock("models", "--url", "http://127.0.0.1:9")
    assert done.returncode == exits.UNREACHABLE
    assert "penstock up" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_json_errors_are_json_too() -> None:
    done = penstock("models", "--url", "http://127.0.0.1:9", "--json")
    assert '"exit_code": 3' in done.stderr
    assert done.stdout == ""
