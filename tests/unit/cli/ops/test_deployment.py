from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.access import digest_of
from penstock.broker.server.users import ADMIN, GATEWAY, WORKER, acl_lines, passwords_in, rules
from penstock.cli.ops.store import app
from penstock.errors import ConfigError
from penstock.settings.tables import Settings


def made(folder: Path, *options: str) -> dict[str, str]:
    """The contents of the files that the command wrote, by name."""
    CliRunner().invoke(app, ["users", str(folder), *options], catch_exceptions=False)
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_the_users_are_those_of_the_embedded_store_and_their_addresses_hold_the_passwords(tmp_path: Path) -> None:
    files = made(tmp_path, "--store", "store.example:6380")
    passwords = passwords_in(tmp_path / "passwords.json")
    assert files["users.acl"] == acl_lines(passwords)
    assert all(f"user {name} on" in files["users.acl"] for name in rules())
    assert files["worker_url"] == f"redis://penstock-worker:{passwords.of(WORKER)}@store.example:6380/0"
    assert files["gateway_password"] == passwords.of(GATEWAY)
    assert not any(password in files["users.acl"] for password in map(passwords.of, (ADMIN, GATEWAY, WORKER)))


def test_a_store_may_be_named_by_its_url_and_sentinels_get_its_login(tmp_path: Path) -> None:
    files = made(tmp_path, "--store", "redis+sentinel://s1:26379,s2:26379/main/0")
    password = passwords_in(tmp_path / "passwords.json").of(WORKER)
    login = f"sentinel_username=penstock-worker&sentinel_password={password}"
    assert files["worker_url"] == f"redis+sentinel://penstock-worker:{password}@s1:26379,s2:26379/main/0?{login}"
    assert Settings.load(None, {"PENSTOCK_REDIS_URL": files["worker_url"]}).store.url == files["worker_url"]


def test_a_url_that_is_none_of_a_store_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--store sentinel://s1"):
        made(tmp_path, "--store", "sentinel://s1")
    assert not (tmp_path / "users.acl").exists()


def test_the_key_opens_the_gateway_that_reads_the_declared_keys(tmp_path: Path) -> None:
    files = made(tmp_path)
    [key] = Settings.load(None, {"PENSTOCK_KEYS_FILE": str(tmp_path / "keys.toml")}).access_keys()
    name, _, secret = files["api_key"].partition(".")
    assert (key.id, key.sha256) == (name, digest_of(secret.encode()))
    assert set(key.roles) == {"submit", "read", "manage"}


def test_running_it_again_keeps_every_secret_and_renews_the_rights(tmp_path: Path) -> None:
    first = made(tmp_path)
    (tmp_path / "users.acl").write_text("user default off\n")
    (tmp_path / "keys.toml").write_text(first["keys.toml"] + "\n# and one more\n")
    inode = (tmp_path / "users.acl").stat().st_ino
    second = made(tmp_path)
    assert second == {**first, "keys.toml": first["keys.toml"] + "\n# and one more\n"}
    assert (tmp_path / "users.acl").stat().st_ino == inode, "a file that is mounted follows its inode"


def test_without_its_declaration_a_key_is_made_anew(tmp_path: Path) -> None:
    first = made(tmp_path)
    (tmp_path / "keys.toml").unlink()
    second = made(tmp_path)
    assert second["api_key"] != first["api_key"]
    assert digest_of(second["api_key"].partition(".")[2].encode()) in second["keys.toml"]


def test_the_folder_keeps_others_out_and_its_files_are_readable_under_any_user_of_a_container(tmp_path: Path) -> None:
    files = made(tmp_path)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in files}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert modes.pop("passwords.json") == 0o600, "nobody mounts it"
    assert set(modes.values()) == {0o644}


def test_no_secret_is_printed(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["users", str(tmp_path), "--json"], catch_exceptions=False)
    printed = json.loads(done.stdout)
    assert sorted(printed["files"] + ["passwords.json"]) == sorted(file.name for file in tmp_path.iterdir())
    secrets = (tmp_path / "api_key").read_text().partition(".")[2], (tmp_path / "grafana_password").read_text()
    assert not any(secret in done.output for secret in secrets)


def test_a_folder_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        made(tmp_path / "none")
    assert caught.value.hint == f"mkdir -p {tmp_path / 'none'}"
