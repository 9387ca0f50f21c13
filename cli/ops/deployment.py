"""`penstock store users FOLDER`: writes the secret files that a containerized deployment mounts; existing ones are kept."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import typer

from penstock.access import digest_of, new_secret
from penstock.broker.server.users import ADMIN, FLOWER, GATEWAY, WORKER, acl_lines, passwords_in
from penstock.cli.display import print_json
from penstock.cli.ops.keys import toml_of
from penstock.errors import ConfigError
from penstock.settings.keys import declared
from penstock.settings.store_url import store_url

KEY_ID = "local"
_PASSWORD_BYTES = 24
# Containers read the files under other user ids, so only the folder's mode keeps other users of the host out.
_FOLDER_MODE, _FILE_MODE = 0o700, 0o644


def write_secrets(folder: Path, store: str, *, as_json: bool) -> None:
    """Write the secrets of a deployment: store users, an API key, passwords of Flower and Grafana.

    A repeat keeps every password and key and rewrites the files derived from them: after an upgrade the store's users get
    the rights of the new version. To replace a secret, remove its file first.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", hint=f"mkdir -p {folder}")
    try:
        folder.chmod(_FOLDER_MODE)
        made = [*_store_files(folder, store), *_key_files(folder), *_password_files(folder)]
    except PermissionError as fault:
        raise ConfigError(f"{fault.filename or folder}: {fault.strerror}", hint="run this as the folder's owner") from fault
    if as_json:
        return print_json({"folder": str(folder), "files": made})
    return typer.echo(f"{folder}: {', '.join(made)}\nthe API key for callers (PENSTOCK_API_KEY) is in api_key")


def _store_files(folder: Path, address: str) -> list[str]:
    passwords = passwords_in(folder / "passwords.json")
    urls = {f"{name}_url": _url_of(address, user, passwords.of(user)) for name, user in _USERS.items()}
    files = {"users.acl": acl_lines(passwords), "gateway_password": passwords.of(GATEWAY), **urls}
    for name, text in files.items():
        _write(folder / name, text)
    return list(files)


def _url_of(address: str, user: str, password: str) -> str:
    """The store's URL with a login, also for sentinels. Raises `ConfigError`."""
    scheme, mark, place = address.rpartition("://")
    url = f"{scheme}://{user}:{password}@{place}" if mark else f"redis://{user}:{password}@{place}/0"
    if "sentinel" in scheme:
        url += f"{'&' if '?' in place else '?'}sentinel_username={user}&sentinel_password={password}"
    try:
        return store_url(url)
    except ValueError as fault:
        raise ConfigError(f"--store {address}: {fault}") from None


_USERS = {"admin": ADMIN, "gateway": GATEWAY, "worker": WORKER, "flower": FLOWER}


def _key_files(folder: Path) -> list[str]:
    """Keep an existing keys.toml, which may hold further keys; without it write both files."""
    if not (folder / "keys.toml").exists():
        secret = new_secret()
        table = {"id": KEY_ID, "sha256": digest_of(secret.encode("ascii")), "roles": ["submit", "read", "manage"]}
        _write(folder / "api_key", f"{KEY_ID}.{secret}")
        _write(folder / "keys.toml", toml_of(declared(table)))
    return ["api_key", "keys.toml"]


def _password_files(folder: Path) -> list[str]:
    for name, text in (("flower_auth", "penstock:{}"), ("grafana_password", "{}")):
        if not (folder / name).exists():
            _write(folder / name, text.format(secrets.token_urlsafe(_PASSWORD_BYTES)))
    return ["flower_auth", "grafana_password"]


def _write(path: Path, text: str) -> None:
    """Write in place: a container that mounts a single file follows the file, not its name."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(text)
        os.fchmod(file.fileno(), _FILE_MODE)
