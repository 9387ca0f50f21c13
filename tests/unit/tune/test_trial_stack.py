from __future__ import annotations

import pytest

from penstock.model_spec import ModelSpec, RuntimeOptions
from penstock.settings.tables import Settings
from penstock.tune.measuring.measure import spec_for
from penstock.tune.result import Choice, EngineSettings
from penstock.tune.trial_stack import settings_of


@pytest.mark.parametrize(("size", "buckets"), [(4, (1, 4)), (16, (1, 8, 16)), (32, (1, 8, 32)), (64, (1, 8, 32))])
def test_a_smaller_batch_takes_its_buckets_along_for_larger_ones_would_be_refused(size: int, buckets: tuple[int, ...]) -> None:
    declared = {"source": "m.onnx", "max_batch_size": 32, "batch_buckets": (1, 8, 32)}
    choice = Choice(EngineSettings(threads=1), size, 0.0, 1)
    table = {**declared, **settings_of(choice, declared)}
    assert tuple(table["batch_buckets"]) == buckets
    checked = Settings.model_validate({"store": {"state_dir": "."}, "models": {"m": table}})
    spec = ModelSpec("m", "m.onnx", runtime=RuntimeOptions(batch_buckets=(1, 8, 32)))
    measured = spec_for(spec, choice.engine, 1, batch_size=size)
    assert checked.specs()[0].runtime.batch_buckets == measured.runtime.batch_buckets == buckets


def test_a_table_without_buckets_gets_none() -> None:
    assert "batch_buckets" not in settings_of(Choice(EngineSettings(threads=1), 4, 0.0, 1), {"source": "m.onnx"})
