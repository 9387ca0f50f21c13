"""TorchServe's key file: as TorchServe writes it, renewed in place, read again by every process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.access import Role
from penstock.errors import ConfigError, RateLimited, WrongRole
from penstock.extensions.torchserve.gateway.errors import torchserve_error
from penstock.extensions.torchserve.gateway.tokens import TokenFile
from penstock.gateway.auth.keys import Caller, KeyAuth, TokenRefused
from penstock.gateway.auth.rules import MANAGE, SUBMIT, WrongToken, require_role

# As TorchServe 0.12 wrote it.
THEIRS = """{
  "management": {
    "key": "rdq_tz1q",
    "expiration time": "2026-11-23T16:59:41.223257197Z"
  },
  "inference": {
    "key": "bJO7lJnT",
    "expiration time": "2026-11-23T16:59:41.223245379Z"
  },
  "API": {
    "key": "kDGYUQLR"
  }
}"""
BEFORE_THAT = 1_795_452_000.0


class Clock:
    now = BEFORE_THAT

    def __call__(self) -> float:
        return self.now


def opened(path: Path, clock: Clock, *, is_alone: bool = True) -> TokenFile:
    found = TokenFile(path, lifetime_s=3_600.0, is_alone=is_alone, wall=clock)
    found.open()
    return found


def key(path: Path, name: str) -> bytes:
    found: str = json.loads(path.read_text())[name]["key"]
    return found.encode()


def roles(tokens: TokenFile, token: bytes) -> set[Role] | None:
    caller = tokens.caller(token)
    return None if caller is None else set(caller.roles)


def test_a_new_file_has_three_keys_that_nobody_can_guess_and_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "key_file.json"
    tokens = opened(path, Clock())
    table = json.loads(path.read_text())
    assert [(name, list(entry)) for name, entry in table.items()] == [
        ("management", ["key", "expiration time"]),
        ("inference", ["key", "expiration time"]),
        ("API", ["key"]),
    ]
    assert all(len(entry["key"]) >= 43 for entry in table.values())
    assert path.stat().st_mode & 0o777 == 0o600
    assert roles(tokens, key(path, "inference")) == {Role.SUBMIT, Role.READ}
    assert roles(tokens, key(path, "management")) == {Role.MANAGE, Role.READ}
    assert roles(tokens, key(path, "API")) == set()
    assert roles(tokens, b"") is None
    assert roles(tokens, "schlüssel".encode()) is None


def test_a_file_of_torchserve_is_taken_until_its_keys_expire(tmp_path: Path) -> None:
    path, clock = tmp_path / "key_file.json", Clock()
    path.write_text(THEIRS)
    path.chmod(0o600)
    tokens = opened(path, clock)
    assert roles(tokens, b"bJO7lJnT") == {Role.SUBMIT, Role.READ}
    assert path.read_text() == THEIRS
    clock.now += 3_600.0
    assert roles(tokens, b"bJO7lJnT") is None
    assert roles(tokens, b"kDGYUQLR") == set()


def test_a_file_that_lacks_nothing_is_read_without_writing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "key_file.json"
    path.write_text(THEIRS)
    path.chmod(0o600)
    opened(path, Clock())
    assert [entry.name for entry in tmp_path.iterdir()] == ["key_file.json"]


def test_a_start_renews_what_has_expired_and_leaves_the_rest(tmp_path: Path) -> None:
    path, clock = tmp_path / "key_file.json", Clock()
    path.write_text(THEIRS)
    path.chmod(0o600)
    clock.now += 3_600.0
    tokens = opened(path, clock)
    assert key(path, "API") == b"kDGYUQLR"
    assert key(path, "inference") != b"bJO7lJnT"
    assert roles(tokens, key(path, "inference")) == {Role.SUBMIT, Role.READ}


def test_a_renewed_token_counts_at_every_process_and_the_old_one_at_none(tmp_path: Path) -> None:
    path, clock = tmp_path / "key_file.json", Clock()
    first, second = opened(path, clock), opened(path, clock)
    old, kept = key(path, "inference"), key(path, "management")
    first.renew("inference")
    new = key(path, "inference")
    assert new != old
    for tokens in (first, second):
        assert roles(tokens, old) is None
        assert roles(tokens, new) == {Role.SUBMIT, Role.READ}
        assert roles(tokens, kept) == {Role.MANAGE, Role.READ}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".key_file.json.lock", "key_file.json"]


def test_what_was_read_last_counts_while_the_file_cannot_be_read(tmp_path: Path) -> None:
    path, clock = tmp_path / "key_file.json", Clock()
    tokens = opened(path, clock)
    token = key(path, "inference")
    path.write_text("{")
    assert roles(tokens, token) == {Role.SUBMIT, Role.READ}
    path.unlink()
    assert roles(tokens, token) == {Role.SUBMIT, Role.READ}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"inference": {}}', '{"inference": {"key": "a"}}', '{"API": 1}', "\xff"])
def test_a_file_that_is_none_is_a_fault_of_the_settings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key_file.json"
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="key_path"):
        opened(path, Clock())
    assert path.read_text(encoding="latin-1") == text


def test_a_file_that_others_may_read_is_a_fault_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "key_file.json"
    path.write_text(THEIRS)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        opened(path, Clock())


def test_a_gateway_with_tokens_and_without_keys_serves_nobody_without_a_token(tmp_path: Path) -> None:
    path = tmp_path / "key_file.json"
    tokens = opened(path, Clock())
    auth = KeyAuth()
    auth.take_tokens(tokens)
    caller = auth.admit(b"Bearer " + key(path, "inference"), "127.0.0.1")
    assert caller == Caller("torchserve", frozenset({Role.SUBMIT, Role.READ}), has_token=True)
    # Nobody else shares the gateway: no share of the queue is kept for others.
    assert caller.is_alone
    for header in (None, b"Bearer x", key(path, "inference"), b"Basic " + key(path, "inference")):
        with pytest.raises(TokenRefused):
            auth.admit(header, "127.0.0.1")


def test_beside_keys_the_callers_with_a_token_are_one_owner_among_others(tmp_path: Path) -> None:
    path = tmp_path / "key_file.json"
    caller = opened(path, Clock(), is_alone=False).caller(key(path, "inference"))
    assert caller is not None
    assert not caller.is_alone
    assert caller.quota(100) == 25


def test_guessing_tokens_is_slowed_down(tmp_path: Path) -> None:
    auth = KeyAuth(clock=lambda: 0.0)
    auth.take_tokens(opened(tmp_path / "key_file.json", Clock()))
    refused = []
    for _ in range(30):
        with pytest.raises((TokenRefused, RateLimited)) as found:
            auth.admit(b"Bearer guess", "192.0.2.1")
        refused.append(type(found.value))
    assert RateLimited in refused


def test_a_token_of_the_wrong_kind_is_refused_as_torchserve_refuses_it(tmp_path: Path) -> None:
    path = tmp_path / "key_file.json"
    caller = opened(path, Clock()).caller(key(path, "inference"))
    assert caller is not None
    require_role(caller, SUBMIT)
    with pytest.raises(WrongRole) as refused:
        require_role(caller, MANAGE)
    assert isinstance(refused.value, WrongToken)
    found = torchserve_error(refused.value)
    assert (found.status, found.name) == (400, "InvalidKeyException")
    assert found.message == "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
