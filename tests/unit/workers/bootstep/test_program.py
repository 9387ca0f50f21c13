from __future__ import annotations

from typing import Any

import pytest

from penstock.workers.bootstep.program import refusals

POOL = object()


def refused(**options: Any) -> list[str]:
    return refusals(options, concurrency=2, prefetch=1, pool=POOL)


def test_what_celerys_command_line_gives_by_itself_is_taken() -> None:
    assert refused(concurrency=2, prefetch_multiplier=1, pool=POOL, optimization="fair", task_events=True, queues=None) == []


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"concurrency": 8}, "slots or slots_per_device"),
        ({"autoscale": (4, 1)}, "pool_grow"),
        ({"queues": ["penstock.{a}"]}, "its settings"),
        ({"exclude_queues": ["penstock.{a}"]}, "its settings"),
        ({"pool": object()}, "leave it out"),
        ({"time_limit": 5.0}, "max_run_s"),
        ({"soft_time_limit": 5.0}, "max_run_s"),
        ({"max_tasks_per_child": 5}, "recycle_after_batches"),
        ({"max_memory_per_child": 5}, "memory_limit_bytes"),
        ({"pool_start_method": "spawn"}, "not forked"),
        ({"prefetch_multiplier": 4}, "max_batch_size"),
        ({"purge": True}, "penstock jobs cancel"),
        ({"beat": True}, "celery beat"),
    ],
)
def test_an_option_that_cannot_do_what_it_says_is_refused_with_what_does(options: dict[str, Any], instead: str) -> None:
    [sentence] = refused(**options)
    assert instead in sentence
