"""Tables of extensions among the settings: checked with all others, known by their classes, loaded where somebody has one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.extensions.webhooks.settings import WebhooksSettings
from penstock.settings.extension_tables import hidden_settings, is_list, is_located, is_mapping
from penstock.settings.tables import Settings

LOADED = """
import sys
from penstock.settings.tables import Settings
Settings.load(None, {"PENSTOCK_MODELS": '{"m": {"source": "m.py"}}'})
print(*sys.modules)
"""


def faults(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "penstock.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        Settings.load(tmp_path / "penstock.toml", {})
    return list(refused.value.faults)


def test_a_table_that_no_source_has_is_not_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert "penstock.extensions.pipelines.settings" not in done.stdout.split()
    assert "penstock.extensions.torchserve.archives.contents" not in done.stdout.split()


def test_a_table_that_no_source_has_is_that_of_the_defaults() -> None:
    assert Settings.load(None, {}).extension(WebhooksSettings) == WebhooksSettings()


def test_faults_of_the_engine_and_of_extensions_are_told_together(tmp_path: Path) -> None:
    found = faults(tmp_path, '[gateway]\nport = "x"\n[webhooks]\ncircut_s = 2\n[pipelines.p]\nstages = [{}]\n')
    origin = f" (from {tmp_path / 'penstock.toml'})"
    assert f"gateway.port: must be a whole number, not 'x'{origin}" in found
    assert f"webhooks.circut_s: no such setting; did you mean circuit_s?{origin}" in found
    assert any(fault.startswith("pipelines.p.stages.0.name: missing") for fault in found)


def test_a_value_in_place_of_a_table_is_a_fault(tmp_path: Path) -> None:
    [fault] = faults(tmp_path, "webhooks = 3\n")
    assert fault.startswith("webhooks: ")


@pytest.mark.parametrize(("name", "meant"), [("webhook", "webhooks"), ("gatewy", "gateway"), ("pipeline", "pipelines")])
def test_a_misspelt_table_is_named_with_the_one_that_is_meant(tmp_path: Path, name: str, meant: str) -> None:
    [fault] = faults(tmp_path, f"[{name}]\n")
    assert f"{name}: no such setting; did you mean {meant}?" in fault


def test_a_misspelt_variable_of_an_extension_is_a_fault() -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_WEBHOOKS__URLS"):
        Settings.load(None, {"PENSTOCK_WEBHOOKS_URLS": "*"})


def test_fields_of_extensions_are_among_those_that_a_suggestion_knows(tmp_path: Path) -> None:
    [fault] = faults(tmp_path, '[models.m]\nsource = "m:F"\n[models.m.versions.2]\nmax_slot = 2\n')
    assert "did you mean max_slots?" in fault


def test_paths_lists_and_mappings_are_known_by_the_types_of_a_table() -> None:
    located = [("webhooks", "ca"), ("torchserve", "key_path"), ("workflows", "w", "source"), ("workflows", "w", "model_store")]
    assert all(map(is_located, located))
    assert not is_located(("webhooks", "public_url"))
    assert is_list(("webhooks", "retry_s"))
    assert is_list(("torchserve", "allowed_urls"))
    assert not is_list(("torchserve", "model_store"))
    assert [name for name in ("pipelines", "workflows", "webhooks", "nobodys") if is_mapping(name)] == [
        "pipelines",
        "workflows",
    ]


def test_settings_that_a_table_keeps_out_of_its_repr_are_hidden() -> None:
    assert hidden_settings() == {"webhooks.signing_keys"}
