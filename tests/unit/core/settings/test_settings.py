from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.model_spec import MAX_BATCH_SIZE, BatchPolicy, Limits
from penstock.settings.tables import Settings


def write(folder: Path, text: str) -> Path:
    config = folder / "penstock.toml"
    config.write_text(text)
    return config


def faults_of(config: Path | None, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Settings.load(config, env or {})
    return caught.value.faults


def test_a_variable_of_a_model_that_is_not_declared_names_the_one_that_was_meant(tmp_path: Path) -> None:
    """Regression: it was told as a fault of penstock.toml: a model without a source, and a setting of it."""
    config = write(tmp_path, "[models.square]\nsource = 'm:S'\n")
    variable = "PENSTOCK_MODELS__SQARE__WORKERS"
    with pytest.raises(ConfigError, match=r"^the settings cannot be used") as caught:
        Settings.load(config, {variable: "2"})
    assert caught.value.faults == [f"models.sqare: no such model is declared; did you mean square? (from env {variable})"]
    assert faults_of(None, {variable: "2"}) == [f"models.sqare: no such model is declared (from env {variable})"]
    declared = {"PENSTOCK_MODELS__NEW__SOURCE": "m:S", "PENSTOCK_MODELS__NEW__SLOTS": "2"}
    assert {spec.name for spec in Settings.load(config, declared).specs()} == {"square", "new"}


def test_the_file_is_blamed_for_its_own_faults_alone(tmp_path: Path) -> None:
    config = write(tmp_path, "[gateway]\nprot = 1\n")
    with pytest.raises(ConfigError, match=f"^{re.escape(str(config))} cannot be used"):
        Settings.load(config, {})
    with pytest.raises(ConfigError, match=r"^the settings cannot be used"):
        Settings.load(write(tmp_path, ""), {"PENSTOCK_GATEWAY__PROT": "1"})


def test_without_any_source_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.load(None, {})
    assert (settings.store.url, settings.store.fsync) == (None, "always")
    assert settings.store.state_dir == tmp_path / ".penstock"
    assert settings.blob_dir == tmp_path / ".penstock" / "blobs"
    assert (settings.gateway.host, settings.gateway.port) == ("127.0.0.1", 8080)
    assert (settings.worker.lease_s, settings.worker.beat_s, settings.worker.sweep_s) == (15, 4, 1)
    assert settings.specs() == []


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(tmp_path: Path) -> None:
    config = write(tmp_path, "[gateway]\nport = 1001\nhost = '0.0.0.0'\nprocesses = 2\n")
    env = {"PENSTOCK_GATEWAY__PORT": "1002", "PENSTOCK_GATEWAY__HOST": "::1"}
    settings = Settings.load(config, env, flags={"gateway.port": 1003, "gateway.host": None})
    assert (settings.gateway.port, settings.gateway.host, settings.gateway.processes) == (1003, "::1", 2)
    assert settings.gateway.max_waits == 10_000


def test_every_value_knows_where_it_came_from(tmp_path: Path) -> None:
    config = write(tmp_path, "[gateway]\nprocesses = 2\n")
    settings = Settings.load(config, {"PENSTOCK_GATEWAY__HOST": "::1"}, flags={"gateway.port": 1})
    origins = [settings.origin(f"gateway.{key}") for key in ("port", "host", "processes", "max_waits")]
    assert origins == ["flag", "env PENSTOCK_GATEWAY__HOST", str(config), "default"]


def test_web_origins_come_from_the_file_as_a_list_and_from_the_environment_with_commas(tmp_path: Path) -> None:
    config = write(tmp_path, "[gateway]\ncors_origins = ['https://app.example', 'http://localhost:5173']\n")
    assert Settings.load(config, {}).gateway.cors_origins == ("https://app.example", "http://localhost:5173")
    env = {"PENSTOCK_GATEWAY__CORS_ORIGINS": "https://a.example, http://[::1]:80"}
    assert Settings.load(config, env).gateway.cors_origins == ("https://a.example", "http://[::1]:80")


@pytest.mark.parametrize("origin", ["*", "null", "https://app.example/", "app.example", "https://App.example", "file://x"])
def test_what_no_browser_sends_as_an_origin_is_refused(tmp_path: Path, origin: str) -> None:
    [fault] = faults_of(write(tmp_path, f"[gateway]\ncors_origins = ['{origin}']\n"))
    assert "gateway.cors_origins" in fault


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    config = write(tmp_path, "[worker]\ngrace_s = 5\n")
    assert Settings.load(None, {"PENSTOCK_CONFIG": str(config)}).worker.grace_s == 5


def test_paths_of_the_file_are_taken_from_its_folder(tmp_path: Path) -> None:
    config = write(tmp_path, "[store]\nstate_dir = 'state'\n[models.square]\nsource = 'code/square.py:Square'\n")
    settings = Settings.load(config, {})
    assert settings.store.state_dir == tmp_path / "state"
    assert settings.specs()[0].source == f"{tmp_path}/code/square.py:Square"


def test_a_bare_file_name_is_a_path_and_a_dotted_name_is_a_module(tmp_path: Path) -> None:
    config = write(tmp_path, "[models]\na.source = 'square.py'\nb.source = 'digits.onnx'\nc.source = 'my.models:Square'\n")
    sources = [spec.source for spec in Settings.load(config, {}).specs()]
    assert sources == [f"{tmp_path}/square.py", f"{tmp_path}/digits.onnx", "my.models:Square"]


def test_paths_of_the_environment_are_taken_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    config = write(tmp_path, "[store]\nstate_dir = 'state'\n")
    assert Settings.load(config, {"PENSTOCK_STORE__STATE_DIR": "mine"}).store.state_dir == tmp_path / "here" / "mine"


def test_a_model_table_becomes_a_spec_with_its_policy_and_limits(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        """
        [models.square]
        source = "m:Square"
        max_batch_size = 32
        max_wait_s = 0
        slots = 2
        threads = 1
        device = "cuda:0"
        max_queue_depth = 5
        options = {scale = 2, labels = {"0" = "zero"}}
        """,
    )
    (spec,) = Settings.load(config, {}).specs()
    assert (spec.name, spec.version, spec.source) == ("square", "1", "m:Square")
    assert spec.policy == BatchPolicy(32, 0.0)
    assert spec.limits == Limits(max_queue_depth=5)
    assert (spec.slots, spec.threads, spec.device) == (2, 1, "cuda:0")
    assert spec.options == {"scale": 2, "labels": {"0": "zero"}}


def test_further_versions_say_only_what_differs(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        """
        [models.square]
        source = "m:Square"
        max_batch_size = 32
        default_version = "2"
        [models.square.versions.2]
        source = "m:Faster"
        max_wait_s = 0.5
        """,
    )
    settings = Settings.load(config, {})
    assert [(s.version, s.source, s.policy) for s in settings.specs()] == [
        ("1", "m:Square", BatchPolicy(32, 0.01)),
        ("2", "m:Faster", BatchPolicy(32, 0.5)),
    ]
    (info,) = settings.model_infos()
    assert (info.default_version, list(info.versions), info.policy.max_wait_s) == ("2", ["1", "2"], 0.5)


def test_a_model_may_have_named_versions_only(tmp_path: Path) -> None:
    config = write(tmp_path, "[models.m.versions]\n'2024-01'.source = 'm:A'\n'2024-02'.source = 'm:B'\n")
    settings = Settings.load(config, {})
    assert [spec.version for spec in settings.specs()] == ["2024-01", "2024-02"]
    assert settings.model_infos()[0].default_version == "2024-01"


def test_every_fault_is_told_at_once_with_its_place_and_origin(tmp_path: Path) -> None:
    config = write(
        tmp_path, "[gateway]\nport = 70000\n[models.square]\nsource = 'm:S'\nmax_batch_size = 0\n[models.cube]\nslots = 1\n"
    )
    faults = faults_of(config, {"PENSTOCK_WORKER__BEAT_S": "soon"})
    assert len(faults) == 4
    text = "\n".join(faults)
    assert f"gateway.port: must be at most 65535, not 70000 (from {config})" in text
    assert f"models.square.max_batch_size: must be at least 1, not 0 (from {config})" in text
    assert "worker.beat_s: must be a number, not 'soon'" in text
    assert "(from env PENSTOCK_WORKER__BEAT_S)" in text
    assert "models.cube.source: missing" in text


def test_a_model_has_between_one_and_sixty_four_partitions_and_all_its_versions_share_them(tmp_path: Path) -> None:
    table = "[models.m]\nsource = 'm:S'\n"
    [few] = faults_of(write(tmp_path, f"{table}partitions = 0\n"))
    [many] = faults_of(write(tmp_path, f"{table}partitions = 65\n"))
    [inside] = faults_of(write(tmp_path, f"{table}[models.m.versions.2]\npartitions = 2\n"))
    assert "models.m.partitions: must be at least 1, not 0" in few
    assert "models.m.partitions: must be at most 64, not 65" in many
    assert "models.m.versions.2.partitions: no such setting" in inside
    pipeline = "[pipelines.p]\npartitions = 3\n[[pipelines.p.stages]]\nname = 's'\nmodel = 'm'\n"
    found = Settings.load(write(tmp_path, f"{table}partitions = 2\n{pipeline}"), env={}).model_infos()
    assert [(info.name, info.partitions, info.held) for info in found] == [("m", 2, 2), ("p", 3, 3)]


def test_a_batch_is_no_larger_than_one_call_of_the_store_takes(tmp_path: Path) -> None:
    # Regression: 4,000 and more stopped a model for good.
    most = write(tmp_path, f"[models.square]\nsource = 'm:S'\nmax_batch_size = {MAX_BATCH_SIZE}\n")
    assert Settings.load(most, env={}).models["square"].max_batch_size == MAX_BATCH_SIZE
    more = write(tmp_path, f"[models.square]\nsource = 'm:S'\nmax_batch_size = {MAX_BATCH_SIZE + 1}\n")
    assert f"max_batch_size: must be at most {MAX_BATCH_SIZE}" in faults_of(more)[0]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("max_batchsize", "did you mean max_batch_size?"),
        ("batchSize", "did you mean max_batch_size?"),
        ("maxBatchDelay", "did you mean max_wait_s (in seconds, not milliseconds)?"),
        ("minWorkers", "did you mean min_slots?"),
        ("solts", "did you mean slots?"),
        ("workers", "did you mean slots?"),
        ("workers_per_device", "did you mean slots_per_device?"),
        ("max_workers", "did you mean max_slots?"),
    ],
)
def test_an_unknown_key_names_the_one_that_was_meant(tmp_path: Path, key: str, meant: str) -> None:
    config = write(tmp_path, f"[models.square]\nsource = 'm:S'\n{key} = 1\n")
    assert faults_of(config) == [f"models.square.{key}: no such setting; {meant} (from {config})"]


def test_a_size_in_gib_names_the_setting_in_bytes(tmp_path: Path) -> None:
    config = write(tmp_path, "[models_cache]\nmax_gib = 50\n")
    meant = "did you mean max_bytes (in bytes, not GiB)?"
    assert faults_of(config) == [f"models_cache.max_gib: no such setting; {meant} (from {config})"]


def test_an_unknown_section_names_the_one_that_was_meant(tmp_path: Path) -> None:
    assert "did you mean gateway?" in faults_of(write(tmp_path, "[gatway]\nport = 1\n"))[0]


def test_broken_toml_is_told_with_its_line(tmp_path: Path) -> None:
    (fault,) = faults_of(write(tmp_path, "[gateway]\nport = = 1\n"))
    assert "not valid TOML" in fault
    assert "line 2" in fault


def test_a_missing_file_is_a_fault_not_a_default(tmp_path: Path) -> None:
    assert "cannot be read" in faults_of(tmp_path / "absent.toml")[0]


@pytest.mark.parametrize("name", ["-x", "a b", "x" * 65, "sq{are", "a/b"])
def test_a_model_name_that_no_url_could_hold_is_refused(tmp_path: Path, name: str) -> None:
    (fault,) = faults_of(write(tmp_path, f"[models.'{name}']\nsource = 'm:S'\n"))
    assert "letters, digits" in fault


def test_a_default_version_must_exist(tmp_path: Path) -> None:
    (fault,) = faults_of(write(tmp_path, "[models.m]\nsource = 'm:S'\ndefault_version = '3'\n"))
    assert "default_version '3' is none of its versions 1" in fault


def test_a_lease_must_outlast_a_lost_beat(tmp_path: Path) -> None:
    (fault,) = faults_of(write(tmp_path, "[worker]\nbeat_s = 10\n"))
    assert "at most half of lease_s" in fault


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[worker]\nsweep_s = 1\n", "worker.sweep_s: there is no such setting any more: it is a quarter of worker.beat_s"),
        ("[webhooks]\ngive_up_s = 1\n", "webhooks.give_up_s: there is no such setting any more: an event is given up once all"),
        ("[models.m]\nsource = 'm:S'\nprofile_every = 3\n", "models.m.profile_every: there is no such setting any more"),
    ],
)
def test_a_setting_that_went_says_what_holds_instead(tmp_path: Path, text: str, why: str) -> None:
    (fault,) = faults_of(write(tmp_path, text))
    assert fault.startswith(why)


def test_what_is_derived_follows_the_setting_that_it_is_derived_from(tmp_path: Path) -> None:
    text = (
        "[gateway]\nmax_connections = 400\nbody_timeout_s = 3\n[worker]\nbeat_s = 2\n[models_cache]\nmax_bytes = 5368709120\n"
    )
    settings = Settings.load(write(tmp_path, text), {})
    assert (settings.gateway.max_connections_per_address, settings.gateway.head_timeout_s) == (100, 3.0)
    assert (settings.worker.sweep_s, settings.models_cache.install_max_bytes) == (0.5, 1 << 30)


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_a_duration_is_a_positive_number(tmp_path: Path, value: str) -> None:
    assert "worker.lease_s" in faults_of(write(tmp_path, f"[worker]\nlease_s = {value}\n"))[0]


def test_redis_url_is_used_unless_ours_is_set() -> None:
    theirs, ours = "redis://theirs:6379/0", "redis://ours:6379/0"
    assert Settings.load(None, {"REDIS_URL": theirs}).store.url == theirs
    assert Settings.load(None, {"REDIS_URL": theirs, "PENSTOCK_REDIS_URL": ours}).store.url == ours
    assert Settings.load(None, {"REDIS_URL": theirs, "PENSTOCK_STORE__URL": ours}).store.url == ours


def test_a_secret_may_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://:secret@store/0\n")
    env = {"PENSTOCK_REDIS_URL_FILE": str(tmp_path / "url")}
    assert Settings.load(None, env).store.url == "redis://:secret@store/0"
    assert "keep one" in faults_of(None, {**env, "PENSTOCK_REDIS_URL": "redis://x"})[0]
    assert "cannot be read" in faults_of(None, {"PENSTOCK_STORE__URL_FILE": str(tmp_path / "absent")})[0]


def test_a_password_is_neither_shown_nor_put_into_a_fault() -> None:
    env = {"PENSTOCK_REDIS_URL": "redis://:hunter2@store/0"}
    assert "hunter2" not in repr(Settings.load(None, env))
    assert "hunter2" not in "".join(faults_of(None, {"PENSTOCK_REDIS_URL": "http://:hunter2@store/0"}))


def test_models_may_come_as_json_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    models = {"square": {"source": "square.py", "max_batch_size": 4}}
    (spec,) = Settings.load(None, {"PENSTOCK_MODELS": json.dumps(models)}).specs()
    assert (spec.source, spec.policy.max_batch_size) == (f"{tmp_path}/square.py", 4)
    assert "not valid JSON" in faults_of(None, {"PENSTOCK_MODELS": "{"})[0]
    assert "must be a JSON object" in faults_of(None, {"PENSTOCK_MODELS": "[]"})[0]


def test_a_variable_finds_its_model_whatever_the_case(tmp_path: Path) -> None:
    config = write(tmp_path, "[models.Bert-Base]\nsource = 'm:B'\n")
    env = {"PENSTOCK_MODELS__BERT_BASE__SLOTS": "3", "PENSTOCK_MODELS__BERT_BASE__OPTIONS__TOP_K": "5"}
    (spec,) = Settings.load(config, env).specs()
    assert (spec.name, spec.slots, spec.options) == ("Bert-Base", 3, {"top_k": 5})


def test_a_variable_with_one_underscore_too_few_is_a_fault() -> None:
    (fault,) = faults_of(None, {"PENSTOCK_GATEWAY_PORT": "1"})
    assert "PENSTOCK_GATEWAY__PORT" in fault


def test_variables_of_others_and_empty_ones_are_left_alone() -> None:
    env = {"PENSTOCK_URL": "http://x", "PENSTOCK_TEST_REDIS_URL": "redis://x", "PENSTOCK_GATEWAY__PORT": "", "REDIS_URL": ""}
    settings = Settings.load(None, env)
    assert (settings.gateway.port, settings.store.url) == (8080, None)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings.load(None, {}).gateway.port = 1


def test_missing_model_files_are_faults_like_any_other_where_the_files_are_needed(tmp_path: Path) -> None:
    (tmp_path / "square.py").write_text("")
    config = write(
        tmp_path,
        "[gateway]\nport = -1\n[models.a]\nsource = 'sqare.py:Square'\n[models.b.versions.2]\nsource = 'nets/b.onnx'\n"
        "[models.c]\nsource = 'package.module:Name'\n[models.d]\nsource = 'square.py'\noptions.source = 'any.py'\n",
    )
    with pytest.raises(ConfigError) as caught:
        Settings.load(config, {}, need_files=True)
    assert len(caught.value.faults) == 3
    text = "\n".join(caught.value.faults)
    assert f"models.a.source: {tmp_path}/sqare.py: no such file; did you mean square.py? (from {config})" in text
    assert f"models.b.versions.2.source: {tmp_path}/nets/b.onnx: no such folder {tmp_path}/nets" in text


def test_a_process_that_loads_no_model_needs_no_model_file(tmp_path: Path) -> None:
    assert Settings.load(write(tmp_path, "[models.a]\nsource = 'a.py'\n"), {}).specs()


def test_an_empty_object_of_models_means_no_models(tmp_path: Path) -> None:
    """Regression: `PENSTOCK_MODELS={}` ended every process with an IndexError."""
    assert Settings.load(None, {"PENSTOCK_MODELS": "{}", "PENSTOCK_STORE__STATE_DIR": str(tmp_path)}).specs() == []


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ("max_batch_size = 8\nbatch_buckets = [1, 64]", "64 rows would always be part padding; set max_batch_size = 64"),
        ("max_batch_size = 8\nbatch_buckets = [1, 16, 32]", "or batch_buckets = [1, 8]"),
        ("max_batch_size = 32\nbatch_buckets = [1, 32]\n[models.m.versions.2]\nmax_batch_size = 8", "(version 2)"),
        ("max_batch_size = 8\n[models.m.versions.2]\nbatch_buckets = [1, 32]", "(version 2)"),
    ],
)
def test_a_bucket_that_no_batch_can_fill_is_refused(tmp_path: Path, table: str, fault: str) -> None:
    """Regression: with buckets 1 and 64 and max_batch_size 8, every batch of 8 ran as 64 rows and took 13 times too long."""
    (found,) = faults_of(write(tmp_path, f"[models.m]\nsource = 'm.onnx'\n{table}\n"))
    assert found.startswith("models.m: batch_buckets [1, ")
    assert fault in found


@pytest.mark.parametrize("table", ["max_batch_size = 32\nbatch_buckets = [1, 8, 32]", "batch_buckets = [1, 32]"])
def test_buckets_up_to_the_batch_size_stand_and_one_that_the_code_may_set_is_left_to_the_load(
    tmp_path: Path, table: str
) -> None:
    config = write(tmp_path, f"[models.m]\nsource = 'm.py'\n{table}\n")
    assert Settings.load(config, {}).specs()[0].runtime.batch_buckets[-1] == 32


def test_tracebacks_are_kept_if_the_model_says_so_or_its_code_is_being_written(tmp_path: Path) -> None:
    config = write(
        tmp_path, "[models.a]\nsource = 'a.py'\n[models.b]\nsource = 'b.py'\nkeep_tracebacks = true\n"
        "[models.c]\nsource = 'c.py'\nkeep_tracebacks = false\n"
    )  # fmt: skip
    assert [spec.keep_tracebacks for spec in Settings.load(config, {}).specs()] == [False, True, False]
    written = Settings.load(config, {}, flags={"worker.reload": True})
    assert [spec.keep_tracebacks for spec in written.specs()] == [True, True, False]
    at_a_terminal = Settings.load(config, {"PENSTOCK_WORKER__KEEP_TRACEBACKS": "true"})
    assert [spec.keep_tracebacks for spec in at_a_terminal.specs()] == [True, True, False]
    refused = Settings.load(config, {}, flags={"worker.reload": True, "worker.keep_tracebacks": False})
    assert [spec.keep_tracebacks for spec in refused.specs()] == [False, True, False]
