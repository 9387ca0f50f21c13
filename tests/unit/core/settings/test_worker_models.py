"""Which of the models of the settings a worker process serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.settings.tables import Settings

FILE = """
[models.text-a]
source = "a.py:A"
[models.text-b]
source = "b.py:B"
[models.image]
source = "c.py:C"
"""


def of_worker(folder: Path, models: str) -> Settings:
    (folder / "penstock.toml").write_text(FILE)
    return Settings.load(folder / "penstock.toml", {"PENSTOCK_WORKER__MODELS": models}, need_files=False).of_worker()


@pytest.mark.parametrize(
    ("models", "served"),
    [("image", ["image"]), ("text-*,image", ["text-a", "text-b", "image"]), ("text-[b-z]", ["text-b"])],
)
def test_a_worker_serves_the_models_that_it_is_given(tmp_path: Path, models: str, served: list[str]) -> None:
    settings = of_worker(tmp_path, models)
    assert settings.served_names == served
    assert [spec.name for spec in settings.specs()] == served


def test_a_pattern_that_fits_nothing_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        of_worker(tmp_path, "image,txt-*")
    assert "worker.models: 'txt-*' fits none of the models: text-a, text-b, image" in str(refused.value.faults)


@pytest.mark.parametrize("pod", ["W_1", "-w", "w/../x"])
def test_a_pod_has_a_name_as_kubernetes_gives_it(tmp_path: Path, pod: str) -> None:
    (tmp_path / "penstock.toml").write_text(FILE)
    with pytest.raises(ConfigError):
        Settings.load(tmp_path / "penstock.toml", {"PENSTOCK_WORKER__POD": pod}, need_files=False)
