from __future__ import annotations

from penstock.gateway.views import worker_view
from penstock.model_spec import SlotInfo, WorkerInfo


def test_a_worker_shows_where_each_slot_lies() -> None:
    gpu = SlotInfo(
        "m",
        "1",
        "ready",
        device="cuda:3",
        device_name="H100",
        device_uuid="GPU-3",
        cores=(0, 1),
        threads=2,
        node=0,
        placement="shared",
    )
    cpu = SlotInfo("m", "1", "ready", threads=1)
    view = worker_view(WorkerInfo("w", "h", 1, 0.0, slots=(gpu, cpu)))
    shown = ("device", "device_name", "device_uuid", "cores", "threads", "node", "placement")
    assert [view["slots"][0][name] for name in shown] == ["cuda:3", "H100", "GPU-3", [0, 1], 2, 0, "shared"]
    assert {name: view["slots"][1].get(name) for name in shown} == {
        "device": "cpu", "device_name": None, "device_uuid": None, "cores": [], "threads": 1, "node": None, "placement": "dedicated",
    }  # fmt: skip
