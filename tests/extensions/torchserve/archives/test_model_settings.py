"""model-config.yaml becomes settings, and every key of it is in the report."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.extensions.torchserve.archives.model_settings import model_settings
from penstock.extensions.torchserve.archives.parity import Parity, not_plain

HONOURED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"batchSize": 8}, {"max_batch_size": 8}),
    ({"maxBatchDelay": 50}, {"max_wait_s": 0.05}),
    ({"responseTimeout": 30}, {"max_run_s": 30.0}),
    ({"startupTimeout": 600}, {"load_timeout_s": 600.0}),
    ({"clientTimeoutInMills": 2500}, {"deadline_s": 2.5}),
    ({"clientTimeoutInMills": 0}, {}),
    ({"jobQueueSize": 20}, {"max_queue_depth": 20}),
    ({"useJobTicket": False}, {}),
    ({"useVenv": True}, {"options": {"use_venv": True}}),
    ({"minWorkers": 3}, {"slots": 3}),
    ({"minWorkers": 3, "maxWorkers": 3}, {"slots": 3}),
    ({"deviceType": "cpu", "minWorkers": 2}, {"slots": 2, "device": "cpu"}),
    ({"deviceType": "gpu", "minWorkers": 2}, {"slots": 2, "device": "cuda"}),
    ({"deviceType": "gpu", "deviceIds": [1], "minWorkers": 2}, {"slots": 1, "slots_per_device": 2, "device": "cuda:1"}),
    ({"handler": {"top": 5}, "pt2": {"compile": {"enable": True}}, "anything": [1]}, {}),
    ({"continuousBatching": False, "parallelLevel": 1, "sequenceBatching": None}, {}),
]


@pytest.mark.parametrize(("config", "values"), HONOURED, ids=str)
def test_what_is_honoured(config: dict[str, Any], values: dict[str, Any]) -> None:
    found = model_settings(config)
    assert found.values == values
    assert {one.key for one in found.report} == set(config)
    assert not_plain(found.report) == []


@pytest.mark.parametrize(
    ("config", "parity", "why"),
    [
        ({"maxWorkers": 4}, Parity.CHANGED, "TorchServe does not scale by load either"),
        ({"useJobTicket": True}, Parity.CHANGED, "one request may wait"),
        ({"maxRetryTimeoutInSec": 60}, Parity.IGNORED, "for as long as its worker lives"),
        ({"batchSize": "8"}, Parity.IGNORED, "it must be a whole number from 1 to 1024"),
        ({"batchSize": 5000}, Parity.IGNORED, "it must be a whole number from 1 to 1024"),
        ({"batchSize": True}, Parity.IGNORED, "it must be a whole number from 1"),
        ({"maxBatchDelay": -1}, Parity.IGNORED, "it must be a number of 0 or more"),
        ({"responseTimeout": 0}, Parity.IGNORED, "it must be a number of seconds above 0"),
        ({"deviceType": "npu"}, Parity.IGNORED, "it must be cpu or gpu"),
        ({"deviceIds": [0]}, Parity.IGNORED, "it goes with deviceType: gpu"),
        ({"deepspeed": {"config": "ds.json"}}, Parity.IGNORED, "TorchServe's handlers for it are not here"),
        ({"parallelType": "pp"}, Parity.REFUSED, "several processes at once"),
        ({"continuousBatching": True}, Parity.REFUSED, "tokens of language models"),
        ({"sequenceBatching": True}, Parity.REFUSED, "one sequence"),
    ],
    ids=str,
)
def test_what_is_not_simply_honoured_is_said_with_its_reason(config: dict[str, Any], parity: Parity, why: str) -> None:
    found = model_settings(config)
    [one] = not_plain(found.report)
    assert (one.key, one.parity) == (next(iter(config)), parity)
    assert why in one.why
    assert bool(found.refused) == (parity is Parity.REFUSED)
    assert str(one).startswith(parity.value)
    assert one.as_json()["value"] == next(iter(config.values()))


def test_several_gpus_are_chosen_by_their_use() -> None:
    found = model_settings({"deviceType": "GPU", "deviceIds": [0, 1], "minWorkers": 2})
    assert found.values == {"slots": 2, "device": "cuda"}
    assert [(one.key, one.parity) for one in not_plain(found.report)] == [("deviceIds", Parity.CHANGED)]
