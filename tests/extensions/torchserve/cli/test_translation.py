"""A deployment of TorchServe becomes settings of ours: each key is in the report, and what is written can be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.extensions.torchserve.archives.parity import Parity, SettingParity
from penstock.extensions.torchserve.cli.server_keys import IGNORED, OF_MODELS
from penstock.extensions.torchserve.cli.server_settings import HANDLED, RULES, server_settings
from penstock.extensions.torchserve.cli.startup_models import MachineSize
from penstock.extensions.torchserve.cli.translation import TorchServeCommandLine, TranslatedDeployment, as_toml, translated
from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.settings.tables import Settings
from tests import archives

METRICS = """
dimensions:
  - &model "ModelName"
model_metrics:
  gauge:
    - name: Speed
      unit: ms
      dimensions: [*model]
"""
SMALL = MachineSize(cores=4, gpus=0)


def server(**properties: str) -> tuple[Mapping[str, Any], dict[str, SettingParity]]:
    found = server_settings(properties, Path("/srv"))
    return found.values, {one.key: one for one in found.report}


def deployment(
    folder: Path, properties: str, *, machine: MachineSize = SMALL, env: Mapping[str, str] | None = None, **options: Any
) -> TranslatedDeployment:
    (folder / "config.properties").write_text(properties)
    return translated(TorchServeCommandLine(**options), env or {}, folder, machine)


def settings(found: TranslatedDeployment, folder: Path) -> Settings:
    (folder / "penstock.toml").write_text(as_toml(found))
    return Settings.load(folder / "penstock.toml", {}, need_files=True)


HONOURED: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "an address": (
        {"inference_address": "http://10.0.0.1:9000"},
        {"gateway.host": "10.0.0.1", "gateway.port": 9000},
    ),
    "an address of IPv6": ({"inference_address": "http://[::1]:9000/"}, {"gateway.host": "::1", "gateway.port": 9000}),
    "an address without a port": ({"inference_address": "http://localhost"}, {"gateway.host": "localhost", "gateway.port": 80}),
    "management beside": (
        {"management_address": "http://127.0.0.1:9001"},
        {"torchserve.management_host": "127.0.0.1", "torchserve.management_port": 9001},
    ),
    "management at the same address": ({"management_address": "http://127.0.0.1:8080"}, {"torchserve.management_port": 0}),
    "metrics beside": (
        {"metrics_address": "http://127.0.0.1:9002"},
        {"gateway.metrics_host": "127.0.0.1", "gateway.metrics_port": 9002},
    ),
    "metrics at the same address": ({"metrics_address": "http://127.0.0.1:8080"}, {"gateway.metrics_port": 0}),
    "no metrics": ({"enable_metrics_api": "false"}, {"gateway.metrics_port": 0}),
    "tokens": ({"disable_token_authorization": "false"}, {"torchserve.key_path": "/srv/key_file.json"}),
    "the model store": (
        {"model_store": "store"},
        {"torchserve.model_store": "/srv/store", "worker.model_dir": "/srv/store"},
    ),
    "registering": ({"enable_model_api": "true"}, {"torchserve.model_api": True}),
    "registering off": ({"enable_model_api": "no"}, {"torchserve.model_api": False}),
    "urls": ({"allowed_urls": "https://a/.*, file://.*"}, {"torchserve.allowed_urls": ["https://a/.*", "file://.*"]}),
    "request size": ({"max_request_size": "1000"}, {"gateway.max_raw_bytes": 1000, "gateway.max_json_bytes": 1000}),
    "response size": ({"max_response_size": "1000"}, {"torchserve.max_response_bytes": 1000}),
    "origins": ({"cors_allowed_origin": "https://Page.example/"}, {"gateway.cors_origins": ["https://page.example"]}),
    "gRPC": (
        {"grpc_inference_port": "9003"},
        {"torchserve.grpc_inference_port": 9003, "torchserve.grpc_management_port": 7071},
    ),
    "no gRPC": ({"grpc_inference_port": "0"}, {"torchserve.grpc_inference_port": 0}),
    "the life of tokens": ({"token_expiration_min": "2"}, {"torchserve.token_lifetime_s": 120}),
    "pinning": ({"cpu_launcher_enable": "true"}, {"worker.pinning": "cores"}),
    "what is always so": ({"ts_open_inference_protocol": "true", "metrics_mode": "prometheus"}, {}),
}


@pytest.mark.parametrize("case", HONOURED)
def test_what_is_honoured(case: str) -> None:
    properties, wanted = HONOURED[case]
    values, report = server(**properties)
    assert wanted.items() <= values.items()
    assert {one.parity for one in report.values()} == {Parity.HONOURED}
    assert set(report) == set(properties)


DIFFERS = {
    "inference_address=https://127.0.0.1:8443": (Parity.CHANGED, "penstock speaks no TLS"),
    "inference_address=unix:/tmp/sock": (Parity.CHANGED, "TorchServe's default took its place"),
    "metrics_address=http://127.0.0.1:8081": (Parity.CHANGED, "metrics are at the address of inference"),
    "max_request_size=many": (Parity.IGNORED, "it must be a whole number"),
    "grpc_inference_port=70700": (Parity.CHANGED, "it must be a port"),
    "cors_allowed_origin=*": (Parity.IGNORED, "* would open the API to every page"),
    "allowed_urls=https://[": (Parity.IGNORED, "it must be regular expressions"),
    "number_of_netty_thread=3": (Parity.IGNORED, "TorchServe 0.12 has no setting of this name"),
    **{f"{key}=1": (Parity.IGNORED, why) for key, why in IGNORED.items()},
}


@pytest.mark.parametrize("line", DIFFERS)
def test_what_is_not_simply_honoured_is_said_with_its_reason(line: str) -> None:
    key, _, value = line.partition("=")
    parity, why = DIFFERS[line]
    _, report = server(**{key: value})
    assert report[key].parity is parity
    assert why in report[key].why
    assert ("pass" in key) == (report[key].value != value)


def test_a_gateway_that_others_reach_asks_for_tokens_as_torchserve_does() -> None:
    values, _ = server(inference_address="http://0.0.0.0:8080")
    assert values["torchserve.key_path"] == "/srv/key_file.json"
    values, report = server(inference_address="http://0.0.0.0:8080", disable_token_authorization="true")
    assert "torchserve.key_path" not in values
    assert "needs keys" in report["disable_token_authorization"].why
    assert "torchserve.key_path" in server(management_address="http://0.0.0.0:8081")[0]
    assert "torchserve.key_path" not in server(inference_address="http://127.0.0.1:8080")[0]


def test_models_of_the_store_are_declared_with_what_the_file_says_of_them(tmp_path: Path) -> None:
    store = tmp_path / "store"
    archives.mar(store / "noop.mar", archives.files(config="batchSize: 4\nmaxWorkers: 2\n"))
    archives.tgz(store / "b2.tar.gz", archives.files(modelName="two", modelVersion="2.0"))
    archives.mar(store / "b1.mar", archives.files(modelName="two", modelVersion="1.0"))
    archives.folder(store / "plain", archives.files(modelName="plain"))
    archives.mar(store / "downloads" / "no.mar")
    (store / "bad.mar").write_bytes(b"none")
    (store / "notes.txt").touch()
    models = (
        '{"noop": {"1.0": {"batchSize": 8, "maxBatchDelay": 50, "minWorkers": 3}}, "two": {"1.0": {"defaultVersion": true}}}'
    )
    found = deployment(
        tmp_path,
        f"model_store=store\nload_models=all\nmodels={models}\njob_queue_size=50\ndefault_response_timeout=60\n"
        "default_startup_timeout=90\ndefault_workers_per_model=2\nservice_envelope=json\ndecode_input_request=false\n",
    )
    specs = {(spec.name, spec.version): spec for spec in settings(found, tmp_path).specs()}
    assert set(specs) == {("noop", "1.0"), ("two", "1.0"), ("two", "2.0"), ("plain", "1.0")}
    registered = settings(found, tmp_path).extension(TorchServeSettings)
    assert (registered.default_workers, registered.default_queue_depth) == (2, 50)
    assert (registered.default_response_timeout_s, registered.default_startup_timeout_s) == (60, 90)
    one, two = specs["noop", "1.0"], specs["two", "2.0"]
    # model-config.yaml stands over `models`.
    assert (one.policy.max_batch_size, one.policy.max_wait_s, one.slots) == (4, 0.05, 3)
    assert (two.policy.max_batch_size, two.policy.max_wait_s, two.slots) == (1, 0.1, 2)
    assert {(spec.limits.max_queue_depth, spec.limits.max_run_s, spec.limits.load_timeout_s) for spec in specs.values()} == {
        (50, 60.0, 90.0)
    }
    assert two.options == {"service_envelope": "json", "decode_input_request": False}
    assert settings(found, tmp_path).models["two"].chosen_version == "1.0"
    said = {(one.key, str(one.value)): one for one in found.report}
    assert said["model", "bad.mar"].parity is Parity.REFUSED
    assert said["noop: maxWorkers", "2"].parity is Parity.CHANGED
    written = as_toml(found)
    assert "# refused   model = bad.mar" in written
    written_keys = {key for key in OF_MODELS if f"\n{key}=" in (tmp_path / "config.properties").read_text()}
    assert written_keys <= {entry.key for entry in found.report}


@pytest.mark.parametrize(
    ("listed", "names", "why"),
    [
        ("a.mar", ["noop"], ""),
        ("mine=a.mar", ["mine"], ""),
        ("a", ["noop"], ""),
        ("a.mar, mine=b.mar", ["noop", "mine"], ""),
        ("a.mar,b.mar", ["noop"], "version 1.0 of noop comes from another archive already"),
        ("absent.mar", [], "there is no such file"),
        ("../a.mar", [], "lies outside the model store"),
        ("https://host.example/a.mar", [], "an address needs a checksum"),
        ("bad name!=a.mar", [], "names are 1 to 64 letters"),
        ("parallel.mar", [], "several processes at once"),
        ("none", [], ""),
    ],
)
def test_load_models(tmp_path: Path, listed: str, names: list[str], why: str) -> None:
    for name in ("a", "b"):
        archives.mar(tmp_path / "store" / f"{name}.mar")
    archives.mar(tmp_path / "a.mar")
    archives.mar(tmp_path / "store" / "parallel.mar", archives.files(config="parallelType: pp\n"))
    found = deployment(tmp_path, "model_store=store\n", models=[listed])
    assert [model.name for model in found.models] == names
    refused = [one.why for one in found.report if one.parity is Parity.REFUSED]
    assert bool(refused) == bool(why)
    assert all(why in one for one in refused)


def test_the_servers_default_handler_is_for_archives_that_name_none(tmp_path: Path) -> None:
    archives.mar(tmp_path / "store" / "own.mar")
    archives.mar(tmp_path / "store" / "bare.mar", archives.files(handler=None, modelName="bare"))
    found = deployment(tmp_path, "model_store=store\nload_models=all\ndefault_service_handler=noop.py:handle\n")
    assert {model.name: model.table.get("options") for model in found.models} == {
        "noop": None,
        "bare": {"handler": "noop.py:handle"},
    }


@pytest.mark.parametrize(
    ("config", "properties", "wanted"),
    [
        ("", "", ("cuda", 2, 1)),
        ("", "number_of_gpu=1\n", ("cuda", 1, 1)),
        ("", "number_of_gpu=0\n", ("cpu", 4, 1)),
        ("", "default_workers_per_model=5\n", ("cuda", 2, 3)),
        ("minWorkers: 4\n", "", ("cuda", 2, 2)),
        ("deviceType: cpu\n", "default_workers_per_model=3\n", ("cpu", 3, 1)),
        ("deviceType: gpu\ndeviceIds: [1]\nminWorkers: 2\n", "", ("cuda:1", 1, 2)),
    ],
)
def test_models_are_placed_as_torchserve_places_them(
    tmp_path: Path, config: str, properties: str, wanted: tuple[str, int, int]
) -> None:
    archives.mar(tmp_path / "store" / "noop.mar", archives.files(config=config))
    found = deployment(tmp_path, f"model_store=store\nload_models=all\n{properties}", machine=MachineSize(cores=4, gpus=2))
    [spec] = settings(found, tmp_path).specs()
    assert (spec.device, spec.slots, spec.slots_per_device) == wanted


def test_metrics_that_the_metrics_file_declares_are_an_option_of_every_model(tmp_path: Path) -> None:
    archives.mar(tmp_path / "store" / "noop.mar")
    (tmp_path / "metrics.yaml").write_text(METRICS)
    found = deployment(tmp_path, "model_store=store\nload_models=all\nmetrics_config=metrics.yaml\n")
    [spec] = settings(found, tmp_path).specs()
    assert spec.options["metrics"] == {"gauge": [{"name": "Speed", "unit": "ms", "dimensions": ["ModelName"]}]}
    absent = deployment(tmp_path, "metrics_config=absent.yaml\n")
    assert [one.parity for one in absent.report] == [Parity.IGNORED]


def test_the_file_is_found_as_torchserve_finds_it(tmp_path: Path) -> None:
    for name in ("env", "option"):
        (tmp_path / name).write_text("")
    env = {"TS_CONFIG_FILE": "env"}
    assert deployment(tmp_path, "", env=env, config=Path("option")).origin == tmp_path / "env"
    assert deployment(tmp_path, "", config=Path("option")).origin == tmp_path / "option"
    assert deployment(tmp_path, "").origin == tmp_path / "config.properties"
    (tmp_path / "config.properties").unlink()
    assert translated(TorchServeCommandLine(), {}, tmp_path, SMALL).origin is None
    with pytest.raises(ConfigError, match="option cannot be read"):
        translated(TorchServeCommandLine(config=Path("no-option")), {}, tmp_path, SMALL)


def test_the_command_line_stands_over_the_file(tmp_path: Path) -> None:
    archives.mar(tmp_path / "other" / "noop.mar")
    found = deployment(
        tmp_path,
        "model_store=store\nload_models=absent.mar\nenable_model_api=false\ninference_address=http://0.0.0.0:80\n",
        model_store=Path("other"),
        models=["noop.mar"],
        without_tokens=True,
        with_model_api=True,
    )
    assert [model.name for model in found.models] == ["noop"]
    assert found.settings["torchserve.model_store"] == str(tmp_path / "other")
    assert found.settings["torchserve.model_api"] is True
    assert "torchserve.key_path" not in found.settings


def test_a_broken_models_value_is_ignored_and_said(tmp_path: Path) -> None:
    for text in ("{no json", "[1]"):
        [one] = deployment(tmp_path, f"models={text}\n").report
        assert (one.key, one.parity) == ("models", Parity.IGNORED)


def test_the_page_names_every_key() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "torchserve.md").read_text()
    keys = {*IGNORED, *OF_MODELS, *RULES, *HANDLED}
    unnamed = {key for key in keys if f"`{key}`" not in page and "_age_grace_ms" not in key}
    assert unnamed == set()


def test_packages_that_an_archive_requires_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    lines = "--no-index\n-r other.txt\nmsgspec\nno-such-package>=2 # for images\n"
    for name in ("a.mar", "b.tar.gz", "c"):
        make = {"mar": archives.mar, "gz": archives.tgz}.get(name.rpartition(".")[2], archives.folder)
        extra = {"requirements.txt": lines}
        make(tmp_path / "store" / name, archives.files(extra=extra, requirementsFile="requirements.txt", modelName=name))
    found = deployment(tmp_path, "model_store=store\nload_models=all\n")
    said = [one for one in found.report if one.key.endswith("requirementsFile")]
    assert {one.parity for one in said} == {Parity.IGNORED}
    why = "missing here: no-such-package>=2 (not installed); run: pip install 'no-such-package>=2'"
    assert [one.why for one in said] == [why] * 3
    allowed = deployment(tmp_path, "model_store=store\nload_models=all\ninstall_py_dep_per_model=true\n")
    assert {one.parity for one in allowed.report if one.key.endswith("requirementsFile")} == {Parity.HONOURED}


def test_workflows_of_the_store_are_declared_with_the_models_of_their_nodes(tmp_path: Path) -> None:
    archives.mar(tmp_path / "store" / "cat.mar", archives.files(modelName="cat"))
    about = {"workflow": {"workflowName": "pets", "specFile": "spec.yaml", "handler": "functions.py"}}
    spec = "models:\n  cat:\n    url: cat.mar\ndag:\n  prepare: [cat]\n"
    war = {"WAR-INF/MANIFEST.json": json.dumps(about), "spec.yaml": spec, "functions.py": "def prepare(data, context): ...\n"}
    archives.mar(tmp_path / "store" / "pets.war", war)
    (tmp_path / "store" / "bad.war").write_bytes(b"none")
    found = deployment(tmp_path, "model_store=store\nload_models=all\n")
    assert {"pets__cat", "pets__prepare"} <= {spec.name for spec in settings(found, tmp_path).specs()}
    assert [model.name for model in found.models] == ["cat"]
    assert [one.value for one in found.report if one.parity is Parity.REFUSED] == ["bad.war"]
    (tmp_path / "store" / "pets.war").rename(tmp_path / "pets.war")
    assert list(deployment(tmp_path, "model_store=store\n", workflow_store=Path()).workflows) == ["pets"]


def test_without_its_package_grpc_is_not_served_and_that_is_said() -> None:
    found = server_settings({"grpc_inference_port": "7070"}, Path("/srv"), has_grpc=False)
    assert not any("grpc" in name for name in found.values)
    assert [one.why for one in found.report] == ["gRPC needs a package: pip install 'penstock-inference[grpc]'"]
