from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.access import digest_of
from penstock.cli.ops.keys import app
from penstock.cli.ops.store import app as store_app
from penstock.errors import ConfigError
from penstock.settings.tables import Settings


def made(*arguments: str) -> tuple[str, str]:
    """Run the command; return what it wrote to stdout and to stderr."""
    done = CliRunner().invoke(app, ["new", *arguments, "--toml"], catch_exceptions=False)
    return done.stdout, done.stderr


def test_a_new_key_is_shown_once_and_declared_by_its_hash_alone() -> None:
    declared, printed = made("ci", "--role", "submit,read", "--owner", "team-a", "--days", "30")
    [key] = Settings.load(None, {"PENSTOCK_KEYS": declared}).access_keys()
    name, _, secret = printed.splitlines()[-1].partition(".")
    assert (name, key.id, key.owner, set(key.roles)) == ("ci", "ci", "team-a", {"submit", "read"})
    assert key.sha256 == digest_of(secret.encode())
    assert secret not in declared
    assert key.expires_at is not None


def test_a_key_has_the_limits_that_the_command_names() -> None:
    declared, _ = made("ci", "--rate", "7", "--burst", "9", "--max-open-jobs", "3")
    [key] = Settings.load(None, {"PENSTOCK_KEYS": declared}).keys
    assert (key.rate_per_s, key.burst, key.max_open_jobs) == (7.0, 9, 3)


def test_a_key_as_json_holds_the_secret_and_what_to_declare() -> None:
    table = json.loads(made("ci", "--json")[0])
    assert digest_of(table["key"].partition(".")[2].encode()) == table["sha256"]


def test_keys_can_be_gathered_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(made("a")[0] + made("b")[0])
    keys = tomllib.loads((tmp_path / "keys.toml").read_text())["keys"]
    assert [key["id"] for key in keys] == ["a", "b"]


@pytest.mark.parametrize("arguments", [["Bad Name"], ["ci", "--role", "boss"], ["ci", "--role", ""], ["ci", "--owner", "a b"]])
def test_a_key_that_a_gateway_would_refuse_is_not_made(arguments: list[str]) -> None:
    with pytest.raises(ConfigError):
        made(*arguments)


def test_the_users_of_a_redis_of_ones_own_get_fresh_passwords() -> None:
    first, second = (CliRunner().invoke(store_app, ["users"]).stdout for _ in range(2))
    names = [line.split()[2] for line in first.splitlines()]
    assert names == ["penstock-gateway", "penstock-worker", "penstock-flower", "penstock-celery"]
    assert first != second
