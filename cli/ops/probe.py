"""`penstock probe gateway|worker`: a health check of a process on this machine, for containers. Exits with 0 or 1."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import exits
from penstock.cli.display import print_json
from penstock.cli.options import ConfigOption, JsonOption
from penstock.cli.serve import setup
from penstock.errors import ConfigError, StoreUnavailable
from penstock.model_spec import ModelInfo
from penstock.settings.keys import local_url

if TYPE_CHECKING:
    from penstock.broker.store.sync import RedisStore
    from penstock.model_spec import ModelSpec
    from penstock.settings.tables import Settings

app = typer.Typer(add_completion=False)

_TIMEOUT_S = 3.0
# Added to the longest batch: a slot claims once per batch, and within a second when it is idle.
_MARGIN_S = 30.0
_UP = "penstock_worker_up"
_WANTED = "penstock_worker_wanted"
_CONSUMED = "penstock_worker_last_consumed_timestamp_seconds"


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """A worker's metrics, by model: ready slots, slots that should take jobs, and the Unix time of the latest claim."""

    ready: Mapping[str, float] = field(default_factory=dict)
    wanted: Mapping[str, float] = field(default_factory=dict)
    consumed_at: Mapping[str, float] = field(default_factory=dict)


class Probed(StrEnum):
    GATEWAY = "gateway"
    WORKER = "worker"


@app.command()
def probe(
    process: Annotated[Probed, typer.Argument(help="Which process of this machine.")],
    url: Annotated[str, typer.Option("--url", help="Where the gateway listens.")] = "http://127.0.0.1:8080",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a process of this machine, for containers: exits with 0 when it is well, with 1 and the reason when not.

    A gateway is well if its store is writable and every declared model has a worker. A worker is well if every model is loaded
    and none with waiting jobs has stopped claiming; it needs worker.metrics_port. A worker whose store is away counts as well:
    a restart would not help. So does one whose models were paused, scaled to none or unloaded on purpose.
    """
    _report(_faults_of_gateway(url) if process is Probed.GATEWAY else _faults_of_worker(config), as_json=as_json)


def _faults_of_gateway(url: str) -> list[str]:
    from penstock.cli.state import check_readiness

    readiness = check_readiness(url, timeout_s=_TIMEOUT_S)
    return [] if readiness.ready else [readiness.why or "not ready"]


def _faults_of_worker(config: Path | None) -> list[str]:
    """The worker's faults. Models that load on demand may be unloaded. Raises `ConfigError` without a metrics port."""
    settings = setup.serve_setup([], config=config, flags={}).settings.of_worker()
    table = settings.worker
    if not table.metrics_port:
        raise ConfigError(
            "a worker without a metrics port cannot be checked", hint="set worker.metrics_port (PENSTOCK_WORKER__METRICS_PORT)"
        )
    seen = _figures(local_url(table.metrics_host, table.metrics_port))
    if seen is None:
        return ["the worker's metrics port does not answer"]
    specs = settings.specs()
    limits = serving_limits(specs, seen)
    steady = [spec.name for spec in specs if spec.name in limits and not comes_and_goes(spec)]
    return [*unloaded(seen, steady), *(stuck(seen, _waiting(settings, limits), limits))]


def comes_and_goes(spec: ModelSpec) -> bool:
    """Whether the model is unloaded when idle, so that a worker without its slots is healthy."""
    return spec.scaling is not None and spec.scaling.idle_unload_s is not None


def serving_limits(specs: Iterable[ModelSpec], seen: WorkerFigures) -> dict[str, float]:
    """The seconds that a job of each model may wait while none is claimed. Models that take no jobs are left out."""
    limits = {}
    for spec in specs:
        # A worker of a release without this metric is checked for all its models.
        if seen.wanted.get(spec.name, 0.0 if seen.wanted else 1.0):
            load_s = spec.limits.load_timeout_s if comes_and_goes(spec) else 0.0
            limits[spec.name] = spec.limits.max_run_s + load_s + _MARGIN_S
    return limits


def unloaded(seen: WorkerFigures, models: Iterable[str]) -> list[str]:
    return [f"{model}: no ready slot" for model in dict.fromkeys(models) if not seen.ready.get(model)]


def stuck(seen: WorkerFigures, waiting: Mapping[str, tuple[float, float]], limits: Mapping[str, float]) -> list[str]:
    """`waiting`: by model, the age of the oldest waiting job and the store's Unix time. `limits` in seconds."""
    faults = []
    for model, (oldest_s, now) in waiting.items():
        idle_s = now - seen.consumed_at.get(model, 0.0)
        if oldest_s > limits[model] and idle_s > limits[model]:
            faults.append(f"{model}: a job has waited for {oldest_s:.0f} s, and none was claimed for {limits[model]:.0f} s")
    return faults


def parse_figures(text: str) -> WorkerFigures:
    """Parse a scrape of the worker's metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return WorkerFigures(
        ready={sample.labels["model"]: sample.value for sample in samples if sample.name == _UP},
        wanted={sample.labels["model"]: sample.value for sample in samples if sample.name == _WANTED},
        consumed_at={sample.labels["model"]: sample.value for sample in samples if sample.name == _CONSUMED},
    )


def _figures(url: str) -> WorkerFigures | None:
    from urllib.request import ProxyHandler, build_opener

    # No proxy: a proxy of the environment would also get requests for the loopback address.
    try:
        with build_opener(ProxyHandler({})).open(f"{url}/metrics", timeout=_TIMEOUT_S) as answer:
            return parse_figures(answer.read().decode("utf-8"))
    except OSError:
        return None


def _waiting(settings: Settings, models: Iterable[str]) -> dict[str, tuple[float, float]]:
    """By model, the age of its oldest waiting job and the store's time; empty if the store is unreachable."""
    from penstock.broker.store.sync import RedisStore

    if settings.store.url is None:
        return {}
    with closing(RedisStore(settings.store.url, name="penstock-probe")) as store:
        try:
            known = {info.name: info for info in store.models()}
            return {model: _oldest(store, known.get(model, ModelInfo(model))) for model in models}
        except StoreUnavailable:
            return {}


def _oldest(store: RedisStore, info: ModelInfo) -> tuple[float, float]:
    """Raises `StoreUnavailable`."""
    from penstock.broker.partitions import queues_of_model, total

    stats = total([store.stats(queue) for queue in queues_of_model(info)])
    return max(stats.oldest_age_s.values(), default=0.0), stats.now


def _report(faults: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"well": not faults, "faults": faults})
    elif faults:
        print("\n".join(faults), file=sys.stderr)
    else:
        typer.echo("well")
    if faults:
        raise typer.Exit(exits.FAILED)
