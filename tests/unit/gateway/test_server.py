from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.gateway.serving import child_environment
from penstock.settings.tables import Settings

KEY = f'[[keys]]\nid = "a"\nsha256 = "{"0123456789abcdef" * 4}"\nroles = ["read"]\n'


@pytest.mark.parametrize(
    ("gateway", "served"),
    [
        ("", True),
        ("dashboard = false", False),
        ("host = '0.0.0.0'", False),
        ("host = '0.0.0.0'\ndashboard = true", True),
    ],
)
def test_the_dashboard_is_on_by_default_where_only_this_machine_sees_it(tmp_path: Path, gateway: str, served: bool) -> None:
    (tmp_path / "penstock.toml").write_text(f"[gateway]\n{gateway}\n{KEY}")
    assert Settings.load(tmp_path / "penstock.toml", {}).has_dashboard is served


PATHS = {"": True, "/penstock": True, "/a/b-c": True, "/": False, "a": False, "/a/": False}


@pytest.mark.parametrize(("path", "good"), PATHS.items())
def test_the_path_under_which_a_proxy_shows_the_gateway_begins_with_a_slash_and_ends_without(
    tmp_path: Path, path: str, good: bool
) -> None:
    (tmp_path / "penstock.toml").write_text(f"[gateway]\nroot_path = '{path}'\n")
    if good:
        assert Settings.load(tmp_path / "penstock.toml", {}).gateway.root_path == path
    else:
        with pytest.raises(ConfigError, match="root_path"):
            Settings.load(tmp_path / "penstock.toml", {})


def test_every_process_of_a_gateway_has_the_settings_in_force_and_metrics_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "penstock.toml").write_text("[gateway]\ncors_origins = ['https://a.example']\nprocesses = 2\n")
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "penstock.toml"))
    monkeypatch.setenv("PENSTOCK_GATEWAY__METRICS_PORT", "9000")
    child = Settings.load(None, child_environment(Settings.load(), port=1, number=1)).gateway
    assert (child.cors_origins, child.processes, child.port, child.metrics_port) == (("https://a.example",), 1, 1, 9001)
