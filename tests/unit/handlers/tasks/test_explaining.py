from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.job import Call
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import Failed, Item, Output
from tests.unit.handlers.tasks.models import PLAIN, bright_words, mean_colour, opened, picture, plain, read, tokenizer

pytest.importorskip("captum", reason="explanations need captum: pip install 'penstock-inference[explain]'")
import torch
from torch import nn

IMAGE: dict[str, Any] = {"inputs": {"image": {"shape": [3, 4, 4]}}}


class Left(nn.Module):
    """The scores of two classes are the brightness of the left and of the right half in the first channel."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.stack([image[:, 0, :, :2].sum((1, 2)), image[:, 0, :, 2:].sum((1, 2))], dim=1)


def why(loaded: Any, given: Any) -> Any:
    """Return the decoded answer to a request for an explanation."""
    media, data = ("image/png", given) if isinstance(given, bytes) else ("text/plain", given.encode())
    (outcome,) = run_batch(loaded, [Item(media, data, call=Call.EXPLAIN)]).outcomes
    return read(outcome) if isinstance(outcome, Output) else outcome


def save(folder: Path, kind: str) -> Path:
    path = folder / f"left.{kind}"
    if kind == "pt2":
        batch = torch.export.Dim("batch", min=1, max=64)
        torch.export.save(torch.export.export(Left(), (torch.zeros(2, 3, 4, 4),), dynamic_shapes=({0: batch},)), path)
        return path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(Left(), torch.zeros(2, 3, 4, 4)).save(str(path))
    return path


@pytest.mark.parametrize("kind", ["pt2", "ts"])
def test_pixels_are_credited_with_what_they_add_to_the_score(tmp_path: Path, kind: str) -> None:
    loaded = opened(save(tmp_path, kind), "image-classification", fit="stretch", **PLAIN, **(IMAGE if kind == "ts" else {}))
    pixels = np.zeros((4, 4, 3))
    pixels[:, 2:, 0] = 255
    pixels[0, 0, 0] = 51
    answer = why(loaded, picture(pixels))
    assert (answer["label"], answer["width"], answer["height"]) == ("1", 4, 4)
    found = np.array(answer["attributions"])
    # For a linear score the credit is the value of the pixel, and pixels without weight get none.
    assert found == pytest.approx(np.where(np.arange(4) >= 2, 1.0, 0.0) * np.ones((4, 4)), abs=1e-5)
    assert found.sum() == pytest.approx(8.0, abs=1e-4)


def test_a_runtime_without_gradients_says_which_file_would_have_them(tmp_path: Path) -> None:
    refused = why(opened(mean_colour(tmp_path), "image-classification"), plain((255, 0, 0)))
    assert isinstance(refused, Failed)
    assert refused.code == "not_explainable"
    assert "this model runs on CPUExecutionProvider" in refused.message
    assert "serve it as .pt2" in refused.message


def test_tokens_are_credited_with_what_the_answer_loses_without_them(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    answer = why(opened(bright_words(tmp_path), "text-classification"), "red blue zzz the")
    assert (answer["label"], answer["tokens"]) == ("1", ["red", "blue", "[UNK]", "the"])
    red, blue, unknown, the = answer["importances"]
    assert unknown == 0, "left out, it is what stands for a word left out"
    assert 0 < red < blue < the

    def chance(total: int) -> float:
        return float(1 / (1 + np.exp(-0.1 * total)))

    # The ids are red 2, blue 4, [UNK] 1, the 7; a word that is left out becomes 1.
    assert blue == pytest.approx(chance(14) - chance(11), abs=1e-6)


def test_without_captum_the_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    refused = why(opened(bright_words(tmp_path), "text-classification"), "red")
    assert "pip install 'penstock-inference[explain]'" in refused.message
