"""The settings of webhooks: keys that no message repeats, rules for URLs, and what turns them on."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.ops.config import rows_of
from penstock.errors import ConfigError
from penstock.extensions.webhooks.settings import WebhooksSettings
from penstock.extensions.webhooks.webhook import new_signing_key
from penstock.settings.tables import Settings

NEW, OLD = new_signing_key(), new_signing_key()
PREFIX = "PENSTOCK_WEBHOOKS__"


def loaded(**variables: str) -> Settings:
    return Settings.load(env={f"{PREFIX}{name}": value for name, value in variables.items()})


def test_webhooks_are_off_by_default_and_then_call_public_hosts_alone() -> None:
    table = loaded().extension(WebhooksSettings)
    assert (table.signing_keys, table.urls, table.timeout_s) == ((), ("*",), 15.0)


def test_two_keys_come_from_the_environment_or_from_a_file(tmp_path: Path) -> None:
    assert loaded(SIGNING_KEYS=f"{NEW},{OLD}").extension(WebhooksSettings).signing_keys == (NEW, OLD)
    (tmp_path / "keys").write_text(f"{NEW}, {OLD}\n")
    assert loaded(SIGNING_KEYS_FILE=str(tmp_path / "keys")).extension(WebhooksSettings).signing_keys == (NEW, OLD)


def test_lists_come_from_the_environment_too() -> None:
    table = loaded(URLS="*,http://hooks.internal:8000/", RETRY_S="1,2.5", CIRCUIT_S="1,5").extension(WebhooksSettings)
    assert table.urls == ("*", "http://hooks.internal:8000/")
    assert (table.retry_s, table.circuit_s) == ((1.0, 2.5), (1.0, 5.0))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("SIGNING_KEYS", "whsec_c2hvcnQ=", "24 to 64 random bytes"),
        ("SIGNING_KEYS", f"{NEW},{OLD},{NEW}", "there are 3 signing keys"),
        ("URLS", "https://hooks.example/a", "ends with a slash"),
        ("RETRY_S", "0", "greater than 0"),
        ("PUBLIC_URL", "models.example.com", "written https://host/path"),
    ],
)
def test_what_cannot_be_used_is_a_fault_that_repeats_no_key(name: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(**{name: value})
    assert f"webhooks.{name.lower()}" in str(refused.value)
    assert why in str(refused.value)
    assert "whsec_c2" not in str(refused.value)
    assert NEW not in str(refused.value)


def test_no_key_is_shown() -> None:
    settings = loaded(SIGNING_KEYS=f"{NEW},{OLD}")
    shown = {name: value for name, value, _ in rows_of(settings)}
    assert shown["webhooks.signing_keys"] == ["***", "***"]
    assert NEW not in repr(settings)
