"""`request_headers` and `query` of a model: what a handler may be told of a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.extension import submit_parameters
from penstock.gateway.jobs.submitting import submit_options
from penstock.settings.models import OWN_PARAMETERS
from penstock.settings.tables import Settings


def load(folder: Path, table: str) -> Settings:
    (folder / "m.py").touch()
    (folder / "penstock.toml").write_text(f"[models.m]\nsource = 'm.py'\n{table}")
    return Settings.load(folder / "penstock.toml", {})


def test_gateways_know_the_names_of_all_versions_and_workers_those_of_each(tmp_path: Path) -> None:
    table = "request_headers = ['X-Tenant']\n[models.m.versions.2]\nrequest_headers = ['x-zone']\nquery = ['language']\n"
    settings = load(tmp_path, table)
    [info] = settings.model_infos()
    assert (info.request_headers, info.query) == (("x-tenant", "x-zone"), ("language",))
    assert {spec.version: spec.request_headers for spec in settings.specs()} == {"1": ("x-tenant",), "2": ("x-zone",)}


@pytest.mark.parametrize("name", ["Authorization", "cookie", "proxy-authorization", "SET-COOKIE"])
def test_no_header_with_credentials_reaches_model_code(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"request_headers = ['{name}']")
    assert "carries credentials" in caught.value.faults[0]


def test_a_star_asks_for_all_headers_and_stands_alone(tmp_path: Path) -> None:
    assert load(tmp_path, "request_headers = ['*']").specs()[0].request_headers == ("*",)
    with pytest.raises(ConfigError, match="it stands alone"):
        load(tmp_path, "request_headers = ['*', 'x-tenant']")


@pytest.mark.parametrize("table", ["request_headers = ['a b']", "query = ['']", "query = ['1x']", "request_headers = ['x:']"])
def test_a_name_that_nobody_can_send_is_refused(tmp_path: Path, table: str) -> None:
    with pytest.raises(ConfigError):
        load(tmp_path, table)


@pytest.mark.parametrize("name", sorted({*OWN_PARAMETERS, *submit_parameters()}))
def test_our_own_parameters_stay_ours(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"query = ['{name}']")
    assert "parameter of penstock itself" in caught.value.faults[0]


def test_the_parameters_that_are_ours_are_those_that_a_gateway_reads() -> None:
    assert frozenset(submit_options.NAMES) == OWN_PARAMETERS


@pytest.mark.parametrize(
    ("table", "rules"),
    [
        ("", ()),
        ("input_urls = false", ()),
        ("input_urls = true", ("*",)),
        ("input_urls = ['https://h/a/', 'http://10.0.0.1/']", ("https://h/a/", "http://10.0.0.1/")),
    ],
)
def test_input_urls_are_switched_on_or_listed(tmp_path: Path, table: str, rules: tuple[str, ...]) -> None:
    assert load(tmp_path, table).specs()[0].input_urls == rules


@pytest.mark.parametrize("rule", ["h", "https://h/a.png", "https://u:p@h/"])
def test_a_rule_that_is_none_is_refused_with_the_reason(tmp_path: Path, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"input_urls = ['{rule}']")
    assert "models.m.input_urls" in caught.value.faults[0]


def test_a_version_that_is_added_at_run_time_opens_no_hosts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "").added_spec("m", "2", {"source": "m.py", "input_urls": True})
    assert caught.value.faults[0].startswith("input_urls: which hosts")


def test_the_file_of_authorities_is_beside_the_settings_and_for_urls_alone(tmp_path: Path) -> None:
    spec = load(tmp_path, "input_urls = true\ninput_urls_ca = 'ca.pem'").specs()[0]
    assert spec.input_urls_ca == str(tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match="input_urls_ca is for input_urls, which is not set"):
        load(tmp_path, "input_urls_ca = 'ca.pem'")
    with pytest.raises(ConfigError, match="input_urls: which hosts"):
        load(tmp_path, "").added_spec("m", "2", {"source": "m.py", "input_urls_ca": "/ca.pem"})


@pytest.mark.parametrize("key", ["request_headers", "query"])
def test_a_version_that_is_added_at_run_time_has_those_of_its_model(tmp_path: Path, key: str) -> None:
    settings = load(tmp_path, f"{key} = ['tenant']")
    assert getattr(settings.added_spec("m", "2", {"source": "m.py"}), key) == ("tenant",)
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        settings.added_spec("m", "3", {"source": "m.py", key: ["other"]})
    assert caught.value.faults == [f"{key}: set it in the settings, which gateways read too"]
