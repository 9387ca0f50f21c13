"""docs/reference: what the pages say of the code is what the code has. `make reference` writes the tables of settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import errors, logs
from penstock.settings.tables import Settings
from tests.pages import api_page, doors_page, kept_tables, log_page, settings_page
from tests.pages.setting_rows import SettingRow, setting_rows

# Texts that a setting accepts, where neither its default nor "x" is one; variables cannot be empty.
SAMPLES = {
    "allowed_urls": "https://models[.]example[.]com/.*",
    "blob_url": "s3://bucket/jobs",
    "celery_url": "redis://localhost:6379/1",
    "circuit_s": "10, 300",
    "cors_origins": "https://app.example.com",
    "default_version": "1",
    "env": '{"REGION": "eu"}',
    "options": '{"top_k": 3}',
    "output": "first",
    "proxies": "10.0.0.0/8",
    "public_url": "https://models.example.com",
    "retry_s": "5, 300",
    "roots": "/srv/a:/srv/b",
    "root_path": "/models",
    "secrets": '{"TOKEN": "x"}',
    "session": '{"graph_optimization_level": 1}',
    "signing_keys": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "url": "redis://store.example.com:6379",
    "urls": "https://hooks.example.com/",
}
# What such a setting needs beside it to be accepted.
BESIDE: dict[str, dict[str, str]] = {
    "gateway.grpc_certificate": {"PENSTOCK_GATEWAY__GRPC_KEY": "key.pem"},
    "gateway.grpc_key": {"PENSTOCK_GATEWAY__GRPC_CERTIFICATE": "cert.pem"},
    "models.NAME.backlog_goal_s": {"PENSTOCK_MODELS__NAME__MAX_SLOTS": "4"},
    "models.NAME.input_urls_ca": {"PENSTOCK_MODELS": '{"name": {"source": "a.py", "input_urls": ["*"]}}'},
    "store.durability": {"PENSTOCK_STORE__URL": "redis://localhost:6379"},
    "worker.models": {"PENSTOCK_MODELS": '{"x.txt": {"source": "a.py"}}'},
    "workflows.NAME.model_store": {"PENSTOCK_WORKFLOWS__NAME__SOURCE": "flow.war"},
}
PIPELINE = '{"name": {"stages": [{"name": "first", "model": "m"}], "elsewhere": ["m"]}}'
MODEL = '{"name": {"source": "a.py"}}'


@pytest.fixture(scope="module")
def page() -> str:
    return settings_page.PAGE.read_text("utf-8")


@pytest.mark.parametrize("row", setting_rows(), ids=lambda row: f"{row.table}.{row.key}")
def test_a_setting_with_a_unit_is_in_seconds_or_bytes(row: SettingRow) -> None:
    assert not re.search(r"_(ms|us|min|minutes|hours|days|seconds|kb|mb|gb|kib|mib|gib|mbytes)$", row.key)
    # Numbers with a fraction are durations, or rates per second.
    assert row.key.endswith("_s") or "number" not in row.type


def test_the_settings_page_is_what_the_settings_are(page: str) -> None:
    assert settings_page.rewritten(page) == page, "run `make reference`"


def test_the_settings_page_says_of_every_setting_what_it_is_for(page: str) -> None:
    assert kept_tables.UNKNOWN not in page


def test_a_new_setting_is_added_once_and_one_that_is_gone_leaves(page: str) -> None:
    first, *rest = [row for row in setting_rows() if row.table == "gateway"]
    without = "".join(
        line for line in page.splitlines(keepends=True) if not line.startswith(f"| `{first.key}`<br>`PENSTOCK_GATE")
    )
    found = settings_page.rewritten(without.replace(f"| `{rest[0].key}`<", "| `gone`<"))
    assert found.count(kept_tables.row(settings_page.cells_of(first), kept_tables.UNKNOWN)) == 1
    assert found.count(kept_tables.row(settings_page.cells_of(rest[0]), kept_tables.UNKNOWN)) == 1
    assert "`gone`" not in found


def sample(row: SettingRow) -> str:
    if row.key in SAMPLES:
        return SAMPLES[row.key]
    if row.default.startswith("`"):
        return row.default.split("`")[1].strip('"')
    if row.type.startswith("`"):
        return row.type.split("`")[1]
    return "1" if row.type.startswith(("integer", "number")) else "x.txt"


@pytest.mark.parametrize("row", [row for row in setting_rows() if row.variable], ids=lambda row: row.variable)
def test_each_variable_of_the_page_sets_its_setting(row: SettingRow, tmp_path: Path) -> None:
    path = f"{row.table}.{row.key}"
    env = {row.variable: sample(row), **BESIDE.get(path, {})}
    if row.table == "models.NAME" and row.key != "source" and "PENSTOCK_MODELS" not in env:
        env["PENSTOCK_MODELS"] = MODEL
    if row.table == "pipelines.NAME":
        env["PENSTOCK_PIPELINES"] = PIPELINE
    if row.table == "torchserve":
        env |= {"PENSTOCK_TORCHSERVE__ENABLED": "true"}
    settings = Settings.load(None, env)
    named = f"{path.replace('NAME', 'name')}"
    origins = {origin for name, origin in settings._origins.items() if name == named or name.startswith(f"{named}.")}
    assert origins == {f"env {row.variable}"}


def test_a_list_without_a_variable_is_written_as_json_of_its_table() -> None:
    table: dict[str, Any] = {"source": "a.py", "batch_buckets": [1, 8], "query": ["lang"]}
    settings = Settings.load(None, {"PENSTOCK_MODELS": json.dumps({"square": table})})
    assert settings.models["square"].batch_buckets == (1, 8)
    assert settings.models["square"].query == ("lang",)


def test_the_page_of_log_events_is_what_the_code_logs() -> None:
    page = log_page.PAGE.read_text("utf-8")
    assert log_page.rewritten(page) == page, "run `make reference`"
    assert kept_tables.UNKNOWN not in page


def test_every_event_of_a_job_is_among_the_log_events() -> None:
    # Their calls take the names from `penstock.logs`: a scan that missed one kind of call would miss these.
    named = {value for name, value in vars(logs).items() if name.startswith("JOB_")}
    assert named <= {event for _, event in log_page.log_events()}


def test_a_log_call_with_a_computed_event_or_field_has_to_be_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(log_page.EVENTS, ("gateway/asgi/server.py", "aside.event"))
    with pytest.raises(KeyError, match=r"aside\.event"):
        log_page.log_events()


def test_the_page_of_the_python_api_has_every_public_name_once() -> None:
    page = api_page.PAGE.read_text("utf-8")
    assert sorted(api_page.listed(page, "names")) == sorted(api_page.public_names())
    assert set(api_page.listed(page, "errors")) >= set(errors.CLIENT_ERRORS)
    assert api_page.rewritten(page) == page, "run `make reference`"


@pytest.mark.parametrize("name", sorted(api_page.public_names()))
def test_every_public_name_says_what_it_is(name: str) -> None:
    found = getattr(penstock, name)
    own = vars(found).get("__doc__") if isinstance(found, type) else found.__doc__
    assert own, f"penstock.{name} has no docstring of its own"


@pytest.mark.parametrize("page", doors_page.pages(), ids=lambda page: page.stem)
def test_what_the_pages_say_of_the_doors_is_what_their_suite_checks(page: Path) -> None:
    assert doors_page.rewritten(page) == page.read_text("utf-8"), "run `make reference`"
