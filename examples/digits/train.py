"""Trains the model of this folder and writes all files that are committed with it; takes a few seconds.

Run `pip install scikit-learn onnx pillow && python examples/digits/train.py`. The data are the 1797 handwritten
digits that come with scikit-learn (8x8 pixels, values 0 to 16). A fifth of them is held out of training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = Path(__file__).parent
SAMPLES = 20
SAMPLE_PIXELS = 64
# The largest pixel value of load_digits.
FULL = 16


def main() -> None:
    digits = load_digits()
    places = np.arange(len(digits.target))
    learn, held = train_test_split(places, test_size=0.2, random_state=7, stratify=digits.target)
    network = MLPClassifier(hidden_layer_sizes=(64, 32), alpha=1e-2, max_iter=400, random_state=7)
    network.fit(digits.data[learn] / FULL, digits.target[learn])
    print(f"held-out accuracy {network.score(digits.data[held] / FULL, digits.target[held]):.4f} on {len(held)} digits")
    save_model(network)
    save_held_out(digits.images[held], digits.target[held])
    save_samples(held, digits.images, digits.target)


def save_model(network: MLPClassifier) -> None:
    """The network as ONNX: `pixels` float32 [batch, 64] in, `probabilities` float32 [batch, 10] out."""
    nodes: list[Any] = []
    weights: list[Any] = []
    value, last = "pixels", len(network.coefs_) - 1
    for layer, (matrix, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        weights.append(numpy_helper.from_array(matrix.astype(np.float32), f"weights_{layer}"))
        weights.append(numpy_helper.from_array(bias.astype(np.float32), f"bias_{layer}"))
        nodes.append(helper.make_node("Gemm", [value, f"weights_{layer}", f"bias_{layer}"], [f"sum_{layer}"]))
        value = "probabilities" if layer == last else f"layer_{layer}"
        nodes.append(helper.make_node("Softmax" if layer == last else "Relu", [f"sum_{layer}"], [value]))
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 64])
    probabilities = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(nodes, "digits", [pixels], [probabilities], weights)
    # Opset 17 and IR 8 are read by every ONNX Runtime since 2022.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model, full_check=True)
    (HERE / "model.onnx").write_bytes(model.SerializeToString())


def save_held_out(images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> None:
    np.savez_compressed(HERE / "held_out.npz", images=images.astype(np.uint8), labels=labels.astype(np.uint8))


def save_samples(held: np.ndarray[Any, Any], images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> None:
    """Two of each digit as PNG, enlarged so that a person can see them: `images/<index>_<label>.png`."""
    (HERE / "images").mkdir(exist_ok=True)
    for label in range(10):
        for place in [place for place in held if labels[place] == label][: SAMPLES // 10]:
            small = Image.fromarray(np.round(images[place] * (255 / FULL)).astype(np.uint8))
            large = small.resize((SAMPLE_PIXELS, SAMPLE_PIXELS), Image.Resampling.NEAREST)
            large.save(HERE / "images" / f"{place:04d}_{label}.png", optimize=True)


if __name__ == "__main__":
    main()
