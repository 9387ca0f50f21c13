from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.broker.server.health import eviction_fault
from penstock.cli.ops import checks
from penstock.cli.ops.checks import Level
from penstock.cli.ops.store_check import fsync_of, judged, name_of, version_of, without_password
from penstock.cli.serve.plan import make_plan
from penstock.errors import ConfigError
from penstock.settings.tables import Settings
from penstock.workers.devices.gpus import Gpus
from penstock.workers.devices.machine import Machine
from penstock.workers.devices.topology import read_topology
from tests.onnx_models import perceptron, saved


def test_a_gpu_that_is_not_there_is_a_fault_only_where_a_model_wants_one(tmp_path: Path) -> None:
    bare = Machine(read_topology(), Gpus(absent="Driver Not Loaded"))
    plain, wanting = (
        Settings.load(env={"PENSTOCK_MODELS": json.dumps({"m": {"source": "m.py", "device": device}})})
        for device in ("cpu", "cuda")
    )
    assert checks.gpus(plain, bare).level is Level.OK
    assert checks.gpus(wanting, bare) == checks.Finding("gpus", Level.WARN, "none: Driver Not Loaded")
    assert checks.pinning(plain, bare).text.startswith("1 of 1 slots are pinned")
    assert checks.pinning(wanting, bare).level is Level.FAIL


def test_both_onnxruntimes_at_once_is_a_failure_with_its_cure() -> None:
    found = checks.onnxruntime(lambda package: "1.31.1")
    assert found.level is Level.FAIL
    # The wheel alone would come without the CUDA libraries to which it is linked.
    assert found.next == "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'penstock[onnx-gpu]'"


def test_either_onnxruntime_alone_is_well() -> None:
    assert checks.onnxruntime(lambda package: "1.31.1" if package.endswith("-gpu") else None).text == "onnxruntime-gpu 1.31.1"
    assert checks.onnxruntime(lambda package: None).level is Level.OK


def test_what_a_model_file_runs_on_is_missed_before_it_is_served(tmp_path: Path) -> None:
    tables = {
        "plain": {"source": str(tmp_path / "a.onnx")},
        "fast": {"source": str(tmp_path / "b.onnx"), "device": "cuda", "provider": "tensorrt"},
        "code": {"source": str(tmp_path / "c.py")},
    }
    config = tmp_path / "penstock.toml"
    config.write_text(
        "".join(
            f"[models.{name}]\n" + "".join(f"{key} = {value!r}\n" for key, value in table.items())
            for name, table in tables.items()
        )
    )
    settings = Settings.load(config, {})
    found = checks.runtimes(settings, lambda package: "1.31" if package == "onnxruntime" else None)
    assert found.level is Level.FAIL
    assert found.text == "fast 1 needs onnx-gpu, onnx-tensorrt"
    assert found.next == "pip install 'penstock[onnx-gpu,onnx-tensorrt]'"
    assert checks.runtimes(settings, lambda package: "10.16").level is Level.OK


def test_what_keeps_a_model_file_from_loading_is_told_before_anything_is_started(tmp_path: Path) -> None:
    """Regression: doctor accepted an ONNX model with precision fp16 on the CPU, or without its labels; every child failed."""
    saved(perceptron(), tmp_path / "a.onnx")
    config = tmp_path / "penstock.toml"
    config.write_text(
        '[models.half]\nsource = "a.onnx"\nprecision = "fp16"\n'
        '[models.cats]\nsource = "a.onnx"\ntask = "image-classification"\noptions.labels = "gone.txt"\n'
    )
    found = checks.models(Settings.load(config, {}))
    assert found.level is Level.FAIL
    assert "models.half (version 1): a.onnx is a model in fp32" in found.text
    assert f"models.cats (version 1): the labels file {tmp_path / 'gone.txt'} cannot be read" in found.text
    with pytest.raises(ConfigError) as caught:
        make_plan([], config=config, flags={}, need_files=True, environ={}, folder=tmp_path)
    assert len(caught.value.faults) == 2


def test_a_model_that_was_not_fetched_yet_is_a_fault_only_if_no_network_may_be_asked(tmp_path: Path) -> None:
    env = {"PENSTOCK_MODELS": '{"net": {"source": "hf://org/net"}}', "PENSTOCK_STORE__STATE_DIR": str(tmp_path)}
    found = checks.models(Settings.load(env=env))
    assert (found.level, found.text) == (Level.OK, "net; still to be fetched: hf://org/net")
    assert found.next == "penstock models fetch"
    offline = checks.models(Settings.load(env=env | {"PENSTOCK_MODELS_CACHE__OFFLINE": "true"}))
    assert offline.level is Level.FAIL
    assert "models_cache.offline is set: hf://org/net" in offline.text


def test_packages_that_models_require_are_missed_before_they_are_served(tmp_path: Path) -> None:
    (tmp_path / "needs.txt").write_text("absent-two>=2\npytest\n")
    models = {
        "a": {"source": "a.py", "requirements": ["absent-one", "pytest>=1"]},
        "b": {"source": "b.py", "requirements": str(tmp_path / "needs.txt")},
        "c": {"source": "c.py"},
    }
    found = checks.packages(Settings.load(env={"PENSTOCK_MODELS": json.dumps(models)}))
    assert (found.level, found.next) == (Level.FAIL, "pip install absent-one 'absent-two>=2'")
    assert "models.a (version 1) needs absent-one (not installed)" in found.text
    assert "models.b (version 1) needs absent-two>=2 (not installed)" in found.text
    del models["a"], models["b"]
    assert checks.packages(Settings.load(env={"PENSTOCK_MODELS": json.dumps(models)})).level is Level.OK


def test_requirements_that_cannot_be_read_are_a_fault_of_their_model(tmp_path: Path) -> None:
    (tmp_path / "needs.txt").write_text("not a requirement!\n")
    models = {"a": {"source": "a.py", "requirements": str(tmp_path / "needs.txt")}}
    found = checks.packages(Settings.load(env={"PENSTOCK_MODELS": json.dumps(models)}))
    assert (found.level, "is no requirement" in found.text) == (Level.FAIL, True)
    assert found.next == "correct `requirements` in penstock.toml"


def test_a_text_task_has_the_batches_of_its_own_unless_the_settings_say_otherwise(tmp_path: Path) -> None:
    saved(perceptron(), tmp_path / "a.onnx")
    (tmp_path / "tokenizer.json").write_text("{}")
    table = {"source": str(tmp_path / "a.onnx"), "task": "text-embedding", "batch_buckets": [1, 32]}
    assert checks.models(Settings.load(env={"PENSTOCK_MODELS": json.dumps({"m": table})})).level is Level.OK
    plain = {"m": table | {"task": ""}}
    assert "go beyond max_batch_size = 8" in checks.models(Settings.load(env={"PENSTOCK_MODELS": json.dumps(plain)})).text


def test_disk_is_judged_at_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert checks.disk(tmp_path / "not" / "yet").level in (Level.OK, Level.WARN)


@pytest.mark.parametrize(
    ("version", "durability", "level"),
    [((6, 2), "fsync always", Level.FAIL), ((7, 0), "no append-only file", Level.WARN), ((8, 1), "fsync always", Level.OK)],
)
def test_a_store_must_be_new_enough_and_should_be_durable(version: tuple[int, ...], durability: str, level: Level) -> None:
    assert judged("redis", version, durability).level is level


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", b"allkeys-random"])
def test_a_store_that_evicts_is_no_job_store(policy: str | bytes) -> None:
    finding = judged("redis", (8, 1), "fsync always", eviction_fault({"maxmemory_policy": policy}))
    assert (finding.level, "noeviction" in finding.next) == (Level.FAIL, True)


@pytest.mark.parametrize("info", [{"maxmemory_policy": "noeviction"}, {}], ids=["noeviction", "not told"])
def test_a_store_that_evicts_nothing_or_says_nothing_of_it_is_taken(info: dict[str, str]) -> None:
    assert eviction_fault(info) == ""


def test_a_valkey_is_known_by_its_own_version() -> None:
    info = {"redis_version": "7.2.4", "valkey_version": "9.1.2"}
    assert (name_of(info), version_of(info)) == ("Valkey 9.1.2", (9, 1, 2))


def test_durability_is_read_from_what_the_server_says() -> None:
    class Server:
        def config_get(self, pattern: str) -> dict[bytes, bytes]:
            return {b"appendonly": b"yes", b"appendfsync": b"everysec"}

    assert fsync_of(Server()) == "fsync everysec"


def test_passwords_are_not_printed() -> None:
    assert without_password("redis://user:secret@host:6379/0") == "redis://host:6379/0"
