"""`[models.m.env]` and `[models.m.secrets]`: what may be written there, where it comes from, and what nobody sees of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.model_spec import Variable
from penstock.settings.tables import Settings


def load(folder: Path, text: str, env: dict[str, str] | None = None) -> Settings:
    config = folder / "penstock.toml"
    config.write_text(f"[models.m]\nsource = 'm.py'\n{text}")
    return Settings.load(config, env or {})


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return caught.value.faults


def test_a_variable_is_a_text_another_variable_or_a_file_beside_the_settings(tmp_path: Path) -> None:
    text = "[models.m.env]\nA = 'x'\nPORT = 8080\nB = {from = 'OURS'}\nC = {file = 'keys/c'}\n"
    [spec] = load(tmp_path, text).specs()
    assert spec.env == {
        "A": Variable(text="x"),
        "PORT": Variable(text="8080"),
        "B": Variable(of="OURS"),
        "C": Variable(file=str(tmp_path / "keys" / "c")),
    }


def test_a_version_that_has_variables_of_its_own_has_only_those(tmp_path: Path) -> None:
    text = "env = {A = '1'}\n[models.m.versions.2]\nsource = 'b.py'\nenv = {B = '2'}\n[models.m.versions.3]\nsource = 'c.py'\n"
    found = {spec.version: list(spec.env) for spec in load(tmp_path, text).specs()}
    assert found == {"1": ["A"], "2": ["B"], "3": ["A"]}


def test_the_environment_of_the_process_may_give_variables_of_a_model_too(tmp_path: Path) -> None:
    env = {"PENSTOCK_MODELS__M__ENV__API_URL": "http://here", "PENSTOCK_MODELS__M__SECRETS__KEY": '{"file": "/run/key"}'}
    [spec] = load(tmp_path, "", env).specs()
    assert (spec.env, spec.secrets) == ({"API_URL": Variable(text="http://here")}, {"KEY": Variable(file="/run/key")})


@pytest.mark.parametrize(
    "value", ["true", "[1]", "{}", "{form = 'X'}", "{from = 'X', file = 'y'}", "{file = ''}", "{from = 3}", "2026-01-01"]
)
@pytest.mark.parametrize("table", ["env", "secrets"])
def test_any_other_form_is_refused_with_the_forms_and_without_the_value(tmp_path: Path, table: str, value: str) -> None:
    [fault] = faults(tmp_path, f"[models.m.{table}]\nA = {value}\n")
    assert fault.startswith(f"models.m.{table}.A")
    assert '{ from = "VARIABLE" }' in fault


@pytest.mark.parametrize("name", ["PENSTOCK_REDIS_URL", "REDIS_URL", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"])
def test_what_penstock_sets_itself_is_refused(tmp_path: Path, name: str) -> None:
    [fault] = faults(tmp_path, f"[models.m.env]\n{name} = '1'\n")
    assert "penstock sets this variable itself" in fault


@pytest.mark.parametrize("name", ["a-b", "1A", "'A B'", "''"])
def test_a_name_that_no_program_can_read_is_refused(tmp_path: Path, name: str) -> None:
    [fault] = faults(tmp_path, f"[models.m.env]\n{name} = '1'\n")
    assert "variables are letters, digits and '_'" in fault


def test_neither_the_settings_nor_a_spec_show_a_secret(tmp_path: Path) -> None:
    settings = load(tmp_path, "[models.m.secrets]\nKEY = 'hunter2-hunter2'\nOTHER = {from = 'OURS'}\n")
    [spec] = settings.specs()
    assert spec.secrets["KEY"].text == "hunter2-hunter2"
    shown = settings.model_dump(mode="json")
    assert shown["models"]["m"]["secrets"] == {"KEY": "***", "OTHER": "from OURS"}
    assert "hunter2" not in f"{shown}{settings!r}{spec!r}"


@pytest.mark.parametrize("table", ["env", "secrets"])
def test_a_version_that_is_added_at_run_time_has_the_models_variables_and_none_of_its_own(tmp_path: Path, table: str) -> None:
    """What is added at run time stands in the store, where everybody reads it, and whoever adds it need not own the worker."""
    settings = load(tmp_path, f"[models.m.{table}]\nKEY = 'x'\n")
    assert getattr(settings.added_spec("m", "2", {"source": "m2.py"}), table) == {"KEY": Variable(text="x")}
    with pytest.raises(ConfigError) as caught:
        settings.added_spec("m", "2", {"source": "m2.py", table: {"LD_PRELOAD": "x.so"}})
    assert f"{table}: environment variables of a model can be set in the settings of its workers only" in caught.value.faults
