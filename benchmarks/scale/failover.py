"""Primaries are lost with their disks while jobs come in, and sentinels promote a replica: `failover_lost` and others."""

from __future__ import annotations

import shutil
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.scale.drill import DrillResult, DrillSetting
from tests.sentinels import SentinelGroup, sentinel_group
from tests.steady_load import REPLICATED, SteadyLoad, lost_of, serving

_ROUNDS, _LOCAL_ROUNDS = 30, 10
_MODEL = "paced"


def measure(setting: DrillSetting) -> DrillResult:
    ends, times = _rounds(setting, "replicated", _ROUNDS, REPLICATED)
    local, local_times = _rounds(setting, "local", _LOCAL_ROUNDS, {})
    figures = {
        "failover_lost": float(lost_of(ends)),
        "failover_recover_s": statistics.median(times["recover_s"]),
        "failover_local_lost": float(lost_of(local)),
    }
    detail = {"replicated": {"ends": dict(ends), **times}, "local": {"ends": dict(local), **local_times}}
    return DrillResult(figures, detail)


def _rounds(setting: DrillSetting, durability: str, full: int, env: Mapping[str, str]) -> tuple[Counter[str], dict[str, Any]]:
    """What became of the accepted jobs; how long each loss took, and how many submits were refused."""
    folder = setting.folder / durability
    folder.mkdir()
    with sentinel_group(folder / "store") as group, serving(group.url, folder, [_MODEL], env) as url:
        with SteadyLoad(url, [_MODEL]) as load:
            load.await_more(100)
            losses = []
            for number in range(setting.rounds(full)):
                losses.append(_lose_the_primary(group, load, folder / f"disk-{number}"))
                setting.say(f"{durability}: {losses[-1][0]:.1f} s from the promotion to the next 202")
        recovered, outages = zip(*losses, strict=True)
        return load.ends(), {"recover_s": recovered, "outage_s": outages, "refused_submits": load.refused}


def _lose_the_primary(group: SentinelGroup, load: SteadyLoad, disk: Path) -> tuple[float, float]:
    """Kill it, remove its disk, have another one promoted, and give that one a replica with an empty disk.

    Returns seconds from the promotion, and from the loss, to the next accepted job.
    """
    old, lost = group.primary(), time.monotonic()
    old.kill()
    shutil.rmtree(old.folder)
    group.await_promotion(old)
    promoted = time.monotonic()
    took_s = load.await_accepted(_MODEL, since=promoted)
    load.await_more(50)
    group.come_back_empty(old, disk)
    return took_s, took_s + promoted - lost
