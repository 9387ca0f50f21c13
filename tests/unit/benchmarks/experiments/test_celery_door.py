from __future__ import annotations

from benchmarks.experiments.celery_door import result


def test_the_ratios_are_those_of_the_medians_of_the_turns() -> None:
    http = [{"tasks_per_s": rate, "cpu_us_per_task": 100.0} for rate in (900.0, 1_000.0, 5_000.0)]
    celery = [{"tasks_per_s": 500.0, "cpu_us_per_task": cost} for cost in (150.0, 250.0, 900.0)]
    found = result({"http": http, "celery": celery})
    assert (found["rate_ratio"], found["cpu_ratio"]) == (0.5, 2.5)
    assert found["http"]["tasks_per_s"] == 1_000.0
