"""Which changes of a model's files make its slots load it anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from penstock.model_spec import ModelSpec
from penstock.workers.fleet.source_watch import SourceWatch
from penstock.workers.slot.slot import Slot


@dataclass
class Served:
    """What the watch needs of a slot."""

    spec: ModelSpec
    reloads: int = 0
    forgotten: int = 0

    def reload(self) -> None:
        assert self.forgotten > self.reloads
        self.reloads += 1

    def forget(self, spec: ModelSpec) -> None:
        assert spec is self.spec
        self.forgotten += 1


def watched(file: Path, source: Path | None = None) -> tuple[SourceWatch, Served]:
    file.parent.mkdir(exist_ok=True)
    file.write_text("ANSWER = 1\n")
    slot = Served(ModelSpec(name="m", source=str(source or file)))
    return SourceWatch(lambda: [cast("Slot", slot)], slot.forget), slot


def test_a_change_between_the_load_and_the_first_look_is_seen(tmp_path: Path) -> None:
    # The first look once came after the change, and took it for what the child had loaded.
    watch, slot = watched(tmp_path / "model.py")
    watch.expect([slot.spec.source])
    (tmp_path / "model.py").write_text("ANSWER = 22\n")
    watch.run_once(0.0)
    assert slot.reloads == 1
    watch.run_once(0.5)
    assert slot.reloads == 1


def test_a_source_that_came_later_is_reloaded_only_when_it_changes(tmp_path: Path) -> None:
    watch, slot = watched(tmp_path / "model.py")
    watch.run_once(0.0)
    assert slot.reloads == 0
    (tmp_path / "beside.py").write_text("")
    watch.run_once(0.5)
    assert slot.reloads == 1


def test_code_in_an_unpacked_archive_is_watched(tmp_path: Path) -> None:
    (tmp_path / "beside.py").touch()
    watch, slot = watched(tmp_path / "archive" / "code.py", source=tmp_path / "archive")
    watch.expect([slot.spec.source])
    (tmp_path / "beside.py").write_text("VALUE = 1\n")
    watch.run_once(0.0)
    assert slot.reloads == 0
    (tmp_path / "archive" / "code.py").write_text("ANSWER = 22\n")
    watch.run_once(0.5)
    assert slot.reloads == 1
