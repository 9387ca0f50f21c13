"""Primaries are lost with their disks while jobs come in, and sentinels promote a replica: `failover_lost` and others.

Each store server is a host. A failing network parts the replicas from the primary for a moment, then the primary's link is cut
and it is killed, so that its connections do not end but fall silent. Sentinels, gateway, worker and callers are on a host that
stays.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.scale.drill import DrillResult, DrillSetting
from tests.hosts import HostNetwork, host_network
from tests.sentinels import SentinelGroup, sentinel_group
from tests.steady_load import REPLICATED, SteadyLoad, lost_of, serving

_ROUNDS, _LOCAL_ROUNDS = 30, 10
_MODEL = "paced"
# What a primary still accepts after its replicas hear no more of it is what is lost without their confirmation.
_APART_S = 0.3


def measure(setting: DrillSetting) -> DrillResult:
    with host_network(3) as network:
        setting.say(f"three store hosts: {network.what}")
        ends, times = _rounds(setting, network, "replicated", _ROUNDS, REPLICATED)
        local, local_times = _rounds(setting, network, "local", _LOCAL_ROUNDS, {})
    figures = {
        "failover_lost": float(lost_of(ends)),
        "failover_recover_s": statistics.median(times["recover_s"]),
        "failover_local_lost": float(lost_of(local)),
    }
    detail = {"hosts": network.what, "replicated": {"ends": dict(ends), **times}, "local": {"ends": dict(local), **local_times}}
    return DrillResult(figures, detail)


def _rounds(
    setting: DrillSetting, network: HostNetwork, durability: str, full: int, env: Mapping[str, str]
) -> tuple[Counter[str], dict[str, Any]]:
    """What became of the accepted jobs; how long each loss took, and how many submits were refused."""
    folder = setting.folder / durability
    folder.mkdir()
    stores = sentinel_group(folder / "store", network.hosts, network.gate.address)
    with stores as group, serving(group.url, folder, [_MODEL], env) as url:
        with SteadyLoad(url, [_MODEL]) as load:
            load.await_more(100)
            losses = []
            for number in range(setting.rounds(full)):
                losses.append(_lose_the_primary(group, load, folder / f"disk-{number}"))
                setting.say(f"{durability}: {losses[-1][0]:.1f} s from the promotion to the next 202")
        recovered, outages = zip(*losses, strict=True)
        return load.ends(), {"recover_s": recovered, "outage_s": outages, "refused_submits": load.refused}


def _lose_the_primary(group: SentinelGroup, load: SteadyLoad, disk: Path) -> tuple[float, float]:
    """Lose its host, remove its disk, have another one promoted, and give that one a replica with an empty disk.

    Returns seconds from the promotion, and from the loss, to the next accepted job.
    """
    old = group.primary()
    replicas = [server for server in group.servers if server is not old]
    for replica in replicas:
        replica.host.cut()
    time.sleep(_APART_S)
    lost = time.monotonic()
    old.lose()
    for replica in replicas:
        replica.host.join()
    shutil.rmtree(old.folder)
    group.await_promotion(old)
    promoted = time.monotonic()
    took_s = load.await_accepted(_MODEL, since=promoted)
    load.await_more(50)
    group.come_back_empty(old, disk)
    return took_s, took_s + promoted - lost
