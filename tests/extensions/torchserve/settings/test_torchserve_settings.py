"""The settings of TorchServe's surface: off by default, paths beside the file, faults that name the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.settings.tables import Settings


def loaded(**variables: str) -> Settings:
    return Settings.load(env={f"PENSTOCK_TORCHSERVE__{name}": value for name, value in variables.items()})


def test_nothing_of_it_is_on_by_default() -> None:
    settings = loaded()
    assert not settings.extension(TorchServeSettings).enabled
    assert not settings.extension(TorchServeSettings).metrics


def test_the_names_of_metrics_need_no_routes() -> None:
    table = loaded(METRICS="true").extension(TorchServeSettings)
    assert (table.metrics, table.enabled) == (True, False)


def test_paths_are_beside_the_file_that_names_them(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('[torchserve]\nenabled = true\nmodel_store = "store"\nkey_path = "keys.json"\n')
    table = Settings.load(config, env={}).extension(TorchServeSettings)
    assert (table.model_store, table.key_path) == (tmp_path / "store", tmp_path / "keys.json")


def test_urls_are_patterns_that_the_environment_separates_by_commas() -> None:
    table = loaded(ENABLED="true", ALLOWED_URLS=r"https://models\.example\.com/.*, s3://bucket/.*").extension(
        TorchServeSettings
    )
    assert table.allowed_urls == (r"https://models\.example\.com/.*", "s3://bucket/.*")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("ALLOWED_URLS", "https://(", "is not a regular expression"),
        ("ALLOWED_URLS", "x" * 1_001, "at most 1000 characters"),
        ("MANAGEMENT_PORT", "70000", "at most 65535"),
        ("MAX_RESPONSE_BYTES", "0", "at least 1"),
    ],
)
def test_a_fault_names_its_setting(name: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(ENABLED="true", **{name: value})
    assert f"torchserve.{name.lower()}" in str(refused.value)
    assert why in str(refused.value)


@pytest.mark.parametrize("name", ["MANAGEMENT_PORT", "MODEL_API", "GRPC_INFERENCE_PORT", "GRPC_MANAGEMENT_PORT", "KEY_PATH"])
def test_what_would_do_nothing_while_the_routes_are_off_is_a_fault(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name.lower()} does nothing while enabled is false"):
        loaded(**{name: "1"})


KEY = f'[[keys]]\nid = "a"\nsha256 = "{"0123456789abcdef" * 4}"\nroles = ["manage"]\n'


def _settings(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "penstock.toml").write_text(text)
    return Settings.load(tmp_path / "penstock.toml", {})


def _access(settings: Settings) -> str:
    return settings.extension(TorchServeSettings).management_access_rule(settings)


@pytest.mark.parametrize(
    ("lines", "apart"),
    [
        ("", False),
        ("management_port = 8081", True),
        ("management_port = 8080", False),
        ('management_port = 8080\nmanagement_host = "127.0.0.2"', True),
    ],
)
def test_management_has_a_listener_unless_its_address_is_that_of_the_gateway(tmp_path: Path, lines: str, apart: bool) -> None:
    settings = _settings(tmp_path, f"[torchserve]\nenabled = true\n{lines}\n")
    assert settings.extension(TorchServeSettings).has_own_port(settings) is apart


def test_management_beyond_loopback_needs_keys_or_tokens(tmp_path: Path) -> None:
    text = '[torchserve]\nenabled = true\nmanagement_port = 8081\nmanagement_host = "0.0.0.0"\n'
    with pytest.raises(ConfigError, match=r"torchserve\.management_host is '0\.0\.0\.0' and there are no API keys"):
        _access(_settings(tmp_path, text))
    assert _access(_settings(tmp_path, text + KEY)) == "API keys required (1 key, 1 owner)"


def test_the_rule_of_access_names_the_file_of_tokens(tmp_path: Path) -> None:
    text = '[torchserve]\nenabled = true\nkey_path = "key_file.json"\n'
    path = tmp_path / "key_file.json"
    assert _settings(tmp_path, text).access_rule() == f"TorchServe's tokens required, those of {path}"
    both = _settings(tmp_path, text + KEY).access_rule()
    assert both == f"API keys required (1 key, 1 owner), or TorchServe's tokens of {path}"


def test_a_pattern_with_a_comma_is_refused_because_a_comma_separates_patterns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="comma"):
        _settings(tmp_path, '[torchserve]\nallowed_urls = ["https://a/.{1,2}"]\n')
