"""What TorchServe's describe object says of our models and workers."""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.backlog import SlotCapacity
from penstock.broker.records import QueueStats
from penstock.extensions.torchserve.management.describe import (
    describe_version,
    listed,
    numbered,
    shown_url,
    version_facts,
)
from penstock.extensions.torchserve.management.registering import Page
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.model_spec import BatchPolicy, ModelInfo, SlotDeviceUse, SlotInfo, VersionInfo, WorkerInfo
from penstock.rollout import Rollout

FIRST = WorkerInfo("w1", "here", 1, 1_000.0, (SlotInfo("m", "1", "ready", pid=11, memory_bytes=4_096),), wanted={"m": {"1": 1}})
LATER = WorkerInfo(
    "w2",
    "here",
    2,
    2_000.0,
    (
        SlotInfo("other", "1", "ready"),
        SlotInfo("m", "1", "loading", device="cuda:1", device_use=SlotDeviceUse(2_639_265_792, 0.07, 0.0)),
        SlotInfo("m", "2", "ready", pid=12),
    ),
)


def entry(**versions: VersionInfo | None) -> ModelEntry:
    known = {name.strip("_"): info for name, info in versions.items()}
    found = {name: VersionEntry(name, info, None, SlotCapacity()) for name, info in known.items()}
    return ModelEntry(ModelInfo("m", "1", BatchPolicy(8, 0.01), versions=known), found["1"], found)


def test_workers_are_numbered_in_the_order_of_their_start_and_say_where_they_run() -> None:
    facts = version_facts(entry(_1=None, _2=None), "1", Rollout(), [LATER, FIRST])
    found = describe_version(facts, [LATER, FIRST], None)
    assert found["workers"] == [
        {
            "id": "9000",
            "startTime": "1970-01-01T00:16:40.000Z",
            "status": "READY",
            "memoryUsage": 4_096,
            "pid": 11,
            "gpu": False,
            "gpuUsage": "N/A",
        },
        {
            "id": "9002",
            "startTime": "1970-01-01T00:33:20.000Z",
            "status": "UNLOADING",
            "memoryUsage": 0,
            "pid": -1,
            "gpu": True,
            "gpuUsage": "gpuId::1 utilization.gpu [%]::7 % utilization.memory [%]::0 % memory.used [MiB]::2517 MiB",
        },
    ]
    assert (found["deviceType"], found["deviceIds"]) == ("gpu", [1])
    assert [number for number, _, _ in numbered([LATER, FIRST])] == [9000, 9001, 9002, 9003]


def test_what_a_driver_does_not_say_of_a_gpu_is_left_out() -> None:
    slots = (
        SlotInfo("m", "1", "ready", device="cuda:0", device_use=SlotDeviceUse(1 << 20)),
        SlotInfo("m", "1", "ready", device="cuda:1"),
    )
    facts = version_facts(entry(_1=None), "1", Rollout(), [])
    found = describe_version(facts, [WorkerInfo("w", "here", 1, 0.0, slots)], None)
    assert [worker["gpuUsage"] for worker in found["workers"]] == ["gpuId::0 memory.used [MiB]::1 MiB", "gpuId::1"]


def test_a_version_of_a_file_of_settings_has_what_they_say() -> None:
    info = VersionInfo(source="hf://org/repo@main")
    known = version_facts(entry(_1=info), "1", Rollout(), [FIRST], "/models/m.onnx")
    assert (known.url, known.workers, known.loaded_at_start) == ("hf://org/repo@main", 1, True)
    unknown = version_facts(entry(_1=None), "1", Rollout(), [], "/models/m.onnx")
    assert (unknown.url, unknown.workers) == ("m.onnx", 0)
    found = describe_version(known, [], None)
    assert (found["batchSize"], found["maxBatchDelay"], found["deviceType"]) == (8, 10, "cpu")
    assert "deviceIds" not in found


def test_a_registered_version_has_its_own_table_and_the_number_it_was_scaled_to() -> None:
    table = {"source": "downloads/ab/m.mar", "registered_from": "http://h/m.mar", "max_batch_size": 2, "max_run_s": 7.0}
    rollout = Rollout(added={"1": {**table, "options": {"use_venv": True}}}, scale={"1": 3})
    facts = version_facts(entry(_1=None), "1", rollout, [FIRST])
    found = describe_version(facts, [], QueueStats("m", 0.0, {0: 3}, solo=1))
    assert [found[name] for name in ("modelUrl", "minWorkers", "maxWorkers", "batchSize", "responseTimeout", "useVenv")] == [
        "http://h/m.mar",
        3,
        3,
        2,
        7,
        True,
    ]
    assert found["loadedAtStartup"] is False
    assert found["jobQueueStatus"] == {"remainingCapacity": 9_996, "pendingRequests": 4}


def test_a_full_queue_has_no_room() -> None:
    facts = version_facts(entry(_1=None), "1", Rollout(added={"1": {"max_queue_depth": 3}}), [])
    assert describe_version(facts, [], QueueStats("m", 0.0, {0: 5}))["jobQueueStatus"]["remainingCapacity"] == 0


def test_models_are_listed_by_name_page_by_page() -> None:
    urls = {"b": "b.mar", "a": "a.mar", "c": "c.mar"}
    assert listed(urls, Page(2)) == {
        "nextPageToken": "2",
        "models": [{"modelName": "a", "modelUrl": "a.mar"}, {"modelName": "b", "modelUrl": "b.mar"}],
    }
    assert listed(urls, Page(2, 2)) == {"models": [{"modelName": "c", "modelUrl": "c.mar"}]}
    assert listed(urls, Page(0)) == {"nextPageToken": "0", "models": []}
    assert listed({}, Page(0)) == {"models": []}


def test_a_source_is_shown_without_the_folders_of_its_machine() -> None:
    assert [shown_url(source) for source in ("/srv/models/m.mar", "m.py:Square", "https://h/a/m.mar", "")] == [
        "m.mar",
        "m.py:Square",
        "https://h/a/m.mar",
        "",
    ]


def test_an_older_worker_that_says_nothing_of_its_slots_counts_none() -> None:
    assert version_facts(entry(_1=None), "1", Rollout(), [replace(FIRST, wanted=None)]).workers == 0


def test_a_source_is_shown_without_the_query_in_which_keys_stand() -> None:
    assert shown_url("https://bucket/m.mar?X-Amz-Signature=secret#sha256=ab") == "https://bucket/m.mar"
