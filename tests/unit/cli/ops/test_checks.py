from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.ops import checks
from penstock.cli.ops.checks import Level
from penstock.cli.ops.store_check import judged, name_of
from penstock.cli.serve.setup import serve_setup
from penstock.cli.serve.store_faults import promotion_faults, replica_fault, store_faults, version_of
from penstock.errors import ConfigError
from penstock.settings.store_url import StoreRequirement
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
    assert found.next == "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'penstock-inference[onnx-gpu]'"


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
    assert found.next == "pip install 'penstock-inference[onnx-gpu,onnx-tensorrt]'"
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
        serve_setup([], config=config, flags={}, need_files=True, environ={}, folder=tmp_path)
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


SOUND = {"redis_version": "8.1.0", "maxmemory_policy": "noeviction", "aof_enabled": 1}


@pytest.mark.parametrize(
    ("info", "fsync", "required", "level"),
    [
        (SOUND, "always", "fsync", Level.OK),
        (SOUND | {"redis_version": "6.2.14"}, "always", "none", Level.FAIL),
        (SOUND | {"maxmemory_policy": b"allkeys-lru"}, "always", "no_eviction", Level.FAIL),
        (SOUND | {"maxmemory_policy": "volatile-ttl"}, "always", "none", Level.WARN),
        (SOUND | {"aof_enabled": 0}, "", "no_eviction", Level.WARN),
        (SOUND | {"aof_enabled": 0}, "", "log", Level.FAIL),
        (SOUND, "everysec", "log", Level.WARN),
        (SOUND, "everysec", "fsync", Level.FAIL),
        (SOUND, "", "log", Level.WARN),
        (SOUND, "", "fsync", Level.FAIL),
    ],
)
def test_a_store_is_refused_for_what_is_required_and_else_warned_of(
    info: dict[str, Any], fsync: str, required: str, level: Level
) -> None:
    assert judged("redis", store_faults(info, fsync), StoreRequirement(required)).level is level


def test_the_worst_fault_says_what_to_do_and_all_are_named() -> None:
    faults = store_faults(SOUND | {"maxmemory_policy": "allkeys-lru", "aof_enabled": 0}, "")
    finding = judged("redis", faults, StoreRequirement.NO_EVICTION)
    assert "noeviction" in finding.next
    assert "append-only" in finding.text


def test_a_store_that_says_nothing_of_itself_is_taken() -> None:
    assert store_faults({}, "always") == []


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"role": "master", "connected_slaves": 1}, ""),
        ({"role": "master", "connected_slaves": 0}, "no replica is connected"),
        ({"role": "slave"}, "it is a replica itself"),
    ],
)
def test_a_store_that_answers_with_its_replica_needs_one(info: dict[str, Any], said: str) -> None:
    assert replica_fault(info).startswith(said)
    assert bool(replica_fault(info)) is bool(said)


def test_a_valkey_is_known_by_its_own_version() -> None:
    info = {"redis_version": "7.2.4", "valkey_version": "9.1.2"}
    assert (name_of(info), version_of(info)) == ("Valkey 9.1.2", (9, 1, 2))


def test_a_node_of_a_cluster_is_no_store_by_itself() -> None:
    info = {"redis_version": "7.2.0", "cluster_enabled": 1, "aof_enabled": 1}
    [fault] = store_faults(info, "always")
    assert "redis+cluster://" in fault.hint
    assert store_faults(info, "always", as_cluster=True) == []


HEALTHY = {"name": "main", "num-other-sentinels": "2", "quorum": "2"}


@pytest.mark.parametrize(
    ("primary", "priorities", "named", "said", "next"),
    [
        (HEALTHY, ["100", "100", "0"], 3, "", ""),
        (HEALTHY, ["100"], 2, "", ""),
        (HEALTHY, ["100"], 1, "names 1 of its 3 sentinels", "name all of them"),
        (HEALTHY | {"quorum": "1"}, ["100"], 3, "1 of its 3 sentinels may find", "SENTINEL SET main quorum 2"),
        (HEALTHY, ["100", "50"], 3, "priorities [50, 100]", "one replica-priority"),
    ],
)
def test_sentinels_that_could_promote_a_server_without_what_was_confirmed_are_refused(
    primary: dict[str, str], priorities: list[str], named: int, said: str, next: str
) -> None:
    faults = promotion_faults(primary, [{"slave-priority": one} for one in priorities], named=named)
    finding = judged("redis", faults, StoreRequirement.NONE)
    assert finding.level is (Level.FAIL if said else Level.OK)
    assert said in finding.text
    assert next in finding.next
