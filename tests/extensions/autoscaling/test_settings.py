"""How `slots`, `min_slots`, `max_slots` and `idle_unload_s` fit together, and what is said where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.model_spec import ScalingPolicy
from penstock.settings.tables import Settings


def load(tmp_path: Path, **table: Any) -> Settings:
    (tmp_path / "m.py").touch()
    lines = ["[models.m]", 'source = "m.py"', *(f"{name} = {_toml(value)}" for name, value in table.items())]
    config = tmp_path / "penstock.toml"
    config.write_text("\n".join(lines))
    return Settings.load(config, {})


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({}, None),
        ({"slots": 3}, None),
        ({"max_slots": 4}, ScalingPolicy(1, 4, 5.0)),
        ({"slots": 2, "max_slots": 4}, ScalingPolicy(2, 4, 5.0)),
        ({"slots": 3, "min_slots": 1}, ScalingPolicy(1, 3, 5.0)),
        ({"min_slots": 2, "max_slots": 4, "backlog_goal_s": 1.5}, ScalingPolicy(2, 4, 1.5)),
        ({"min_slots": 2}, ScalingPolicy(2, 2, 5.0)),
        ({"idle_unload_s": 60.0}, ScalingPolicy(0, 1, 5.0, 60.0)),
        ({"min_slots": 0, "max_slots": 3, "idle_unload_s": 60.0}, ScalingPolicy(0, 3, 5.0, 60.0)),
        ({"device": "cuda", "slots": 2, "slots_per_device": 3, "min_slots": 1}, ScalingPolicy(1, 6, 5.0)),
    ],
)
def test_bounds_follow_from_what_is_set(tmp_path: Path, table: dict[str, Any], expected: ScalingPolicy | None) -> None:
    [spec] = load(tmp_path, **table).specs()
    assert spec.scaling == expected


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"min_slots": 0}, "set idle_unload_s too"),
        ({"min_slots": 3, "max_slots": 2}, "min_slots = 3 is more than max_slots = 2"),
        ({"slots": 8, "max_slots": 4}, "slots = 8, the number of slots at the start, is not from 4 to 4"),
        ({"slots": 1, "min_slots": 2, "max_slots": 4}, "leave `slots` out"),
        ({"backlog_goal_s": 2.0}, "set max_slots too"),
        ({"max_slots": 0}, "max_slots"),
        ({"max_slots": 257}, "max_slots"),
        ({"idle_unload_s": 0}, "idle_unload_s"),
    ],
)
def test_bounds_that_contradict_each_other_are_refused_with_what_to_write(
    tmp_path: Path, table: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, **table)
    assert fault in "\n".join(refused.value.faults)


def test_a_version_that_is_loaded_at_run_time_is_checked_too(tmp_path: Path) -> None:
    settings = load(tmp_path, max_slots=4)
    assert settings.added_spec("m", "2", {"source": "m.py"}).scaling == ScalingPolicy(1, 4, 5.0)
    with pytest.raises(ConfigError, match="this version cannot be used"):
        settings.added_spec("m", "2", {"source": "m.py", "min_slots": 5})
