"""Options of `celery worker` that cannot do here what they say, and what does instead. Pure."""

# D87: docs/design/workers-and-devices.md

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_IN_MODEL = "set {} in [models.NAME] of penstock.toml"
_INSTEAD = {
    "autoscale": ("--autoscale", "slots do not follow the load; use `celery control pool_grow`, or more workers"),
    "queues": ("-Q", "a worker serves the models of its settings; give each worker a penstock.toml with its models"),
    "exclude_queues": ("-X", "a worker serves the models of its settings; give each worker a penstock.toml with its models"),
    "time_limit": ("--time-limit", _IN_MODEL.format("max_run_s")),
    "soft_time_limit": ("--soft-time-limit", _IN_MODEL.format("max_run_s")),
    "max_tasks_per_child": ("--max-tasks-per-child", _IN_MODEL.format("recycle_after_batches")),
    "max_memory_per_child": ("--max-memory-per-child", _IN_MODEL.format("memory_limit_bytes")),
    "pool_start_method": ("--pool-start-method", "models run in processes of their own, which are not forked from the worker"),
    "purge": ("--purge", "the queues hold stored jobs; use `penstock jobs cancel`"),
    "beat": ("-B", "run `celery beat` of your own app as a process of its own"),
}


def refusals(options: Mapping[str, Any], *, concurrency: int, prefetch: int, pool: object) -> list[str]:
    """One sentence per option that is refused; the other arguments are what Celery's command line gives where nobody asked."""
    found = [f"{option}: {instead}" for name, (option, instead) in _INSTEAD.items() if options.get(name)]
    if options.get("concurrency") not in (None, concurrency):
        found.append(f"-c: a worker has the slots of its models; {_IN_MODEL.format('workers or workers_per_device')}")
    if options.get("prefetch_multiplier") not in (None, prefetch):
        found.append(f"--prefetch-multiplier: a slot claims what it can run; {_IN_MODEL.format('max_batch_size')}")
    if options.get("pool") not in (None, pool):
        found.append("-P: models run in processes pinned to their devices, and no other pool can run them; leave it out")
    return found
