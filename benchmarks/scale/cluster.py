"""Primaries of a cluster are lost and slots move while jobs come in: `cluster_lost`.

Each node is a host whose link is cut before its server is killed: its connections do not end but fall silent.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.scale.drill import DrillResult, DrillSetting
from penstock.broker.store.ops import prefix
from tests.faults.server import Server
from tests.hosts import host_network
from tests.steady_load import SteadyLoad, lost_of, serving
from tests.valkey_cluster import Cluster, valkey_cluster

_KILLS, _MOVES = 20, 10
_KEYS_AT_ONCE = 10


def measure(setting: DrillSetting) -> DrillResult:
    with host_network(6) as network, valkey_cluster(setting.folder / "cluster", network.hosts) as cluster:
        setting.say(f"six nodes, each a host: {network.what}")
        models = models_apart(cluster)
        with serving(cluster.url, setting.folder, models) as url:
            with SteadyLoad(url, models) as load:
                load.await_more(100)
                kills = [_lose_a_primary(cluster, load, models[at % 3], setting) for at in range(setting.rounds(_KILLS))]
                for at in range(setting.rounds(_MOVES)):
                    _move_a_slot(cluster, load, models[at % 3], whole=at % 2 == 0)
                    setting.say(f"slot {at + 1} moved, {len(load.accepted)} accepted")
            ends = load.ends()
    recovered, outages = zip(*kills, strict=True)
    figures = {"cluster_lost": float(lost_of(ends)), "cluster_recover_s": statistics.median(recovered)}
    detail = {
        "hosts": network.what,
        "ends": dict(ends),
        "recover_s": recovered,
        "outage_s": outages,
        "refused_submits": load.refused,
    }
    return DrillResult(figures, detail)


def models_apart(cluster: Cluster) -> list[str]:
    """A model on each of the three primaries."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < 3:
        found.setdefault(cluster.primary_of(prefix(f"m{number}")).port, f"m{number}")
        number += 1
    return list(found.values())


def _lose_a_primary(cluster: Cluster, load: SteadyLoad, model: str, setting: DrillSetting) -> tuple[float, float]:
    """Seconds from the promotion, and from the loss, to the next accepted job of this model; the lost node is back by then."""
    key = prefix(model)
    old, lost = cluster.primary_of(key), time.monotonic()
    old.lose()
    cluster.await_promotion(key, old)
    promoted = time.monotonic()
    # Its replica is the primary now, and without another one the store takes no writes for this model.
    cluster.come_back(old, key)
    took_s = load.await_accepted(model, since=promoted)
    load.await_more(50)
    setting.say(f"a primary of {model} lost, {took_s:.1f} s from the promotion to the next 202, {len(load.accepted)} accepted")
    return took_s, took_s + promoted - lost


def _move_a_slot(cluster: Cluster, load: SteadyLoad, model: str, *, whole: bool) -> None:
    key = prefix(model)
    cluster.move_slot(key, _another(cluster, key), keys_at_once=0 if whole else _KEYS_AT_ONCE)
    load.await_accepted(model, since=time.monotonic())
    load.await_more(50)


def _another(cluster: Cluster, key: str) -> Server:
    """A primary that does not serve the key."""
    own = cluster.primary_of(key)
    return next(found for number in range(1_000) if (found := cluster.primary_of(prefix(f"m{number}"))) is not own)
