"""Who may reach Flower, and what its page of queues shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.ops.flower import LOGINS, app, guard_environment
from penstock.cli.ops.flower_process import rows
from penstock.errors import ConfigError


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_no_login_is_needed(address: str) -> None:
    assert LOGINS not in guard_environment({}, address=address, logins="")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", ""])
def test_elsewhere_it_takes_a_login_and_the_message_says_what_to_set(address: str) -> None:
    with pytest.raises(ConfigError) as refused:
        guard_environment({}, address=address, logins="")
    assert "--basic-auth-file" in str(refused.value.hint)
    assert guard_environment({}, address=address, logins="a:b")[LOGINS] == "a:b"
    assert guard_environment({LOGINS: "c:d"}, address=address, logins="")[LOGINS] == "c:d"
    assert guard_environment({"FLOWER_AUTH": r".*@example\.com"}, address=address, logins="")


def test_an_api_that_anybody_may_use_is_refused_even_on_loopback() -> None:
    with pytest.raises(ConfigError, match="FLOWER_UNAUTHENTICATED_API"):
        guard_environment({"FLOWER_UNAUTHENTICATED_API": "true"}, address="127.0.0.1", logins="a:b")


def test_it_only_shows_unless_told_otherwise() -> None:
    assert guard_environment({}, address="127.0.0.1", logins="")["FLOWER_READ_ONLY"] == "true"
    assert guard_environment({"FLOWER_READ_ONLY": "false"}, address="127.0.0.1", logins="")["FLOWER_READ_ONLY"] == "false"


@pytest.mark.parametrize("text", ["", "nobody\n", "user:\n", ":password\n", "a:b,c\n"])
def test_a_file_without_usable_logins_is_refused_without_repeating_it(tmp_path: Path, text: str) -> None:
    logins = tmp_path / "logins"
    logins.write_text(text)
    refused = CliRunner().invoke(app, ["--basic-auth-file", str(logins), "--redis-url", "redis://127.0.0.1:1"]).exception
    assert isinstance(refused, ConfigError)
    assert "USER:PASSWORD" in str(refused)
    assert "b,c" not in str(refused)


def test_without_a_store_it_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, ["--port", "0"]).exception
    assert isinstance(refused, ConfigError)
    assert "penstock up" in str(refused.hint)


def test_a_queue_has_a_line_for_the_sum_and_one_per_priority() -> None:
    assert rows("penstock.{m}", {0: 1, 3: 10, 6: 100, 9: 1_000}) == [
        {"name": "penstock.{m}", "messages": 1_111},
        {"name": "penstock.{m} interactive", "messages": 1},
        {"name": "penstock.{m} late", "messages": 100},
        {"name": "penstock.{m} bulk", "messages": 1_000},
    ]


def test_on_a_cluster_it_needs_the_redis_of_celerys_events() -> None:
    # Celery has no transport for a cluster, so Flower would stay empty without a word.
    env = {"PENSTOCK_REDIS_URL": "redis+cluster://store"}
    done = CliRunner().invoke(app, [], env=env)
    assert isinstance(done.exception, ConfigError)
    assert "store.celery_url" in str(done.exception.hint)
