"""Writes the detector's model files and pictures for it: `python examples/detection/export.py [FOLDER]`.

model.pt2 (torch.export) and model.onnx, some 15 MB each, and scenes/*.jpg. Needs torch, onnxscript and Pillow:
pip install 'penstock-inference[torch,images]' onnx onnxscript.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from net import Detector, seeded
from scenes import scene
from torch import Tensor

FOLDER = Path(__file__).parent / "build"
SIDE = 320
SMALL_WIDTHS = (8, 8, 16)
SCENES = 16
# More than 1 image: some exporters fix an axis whose example has the size 1.
_EXAMPLE_BATCH = 2
OUTPUTS = ("pred_boxes", "logits")


def write_exported(net: Detector, example: Tensor, path: Path) -> None:
    program = torch.export.export(net, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    torch.export.save(program, path)


def write_onnx(net: Detector, example: Tensor, path: Path) -> None:
    with warnings.catch_warnings():
        # torch's exporter warns about its own use of pytree.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (example,),
            str(path),
            dynamo=True,
            input_names=["image"],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            verbose=False,
        )


WRITERS: dict[str, Callable[[Detector, Tensor, Path], None]] = {"model.pt2": write_exported, "model.onnx": write_onnx}


def export(folder: Path, *, net: Detector | None = None, side: int = SIDE) -> list[Path]:
    """Write every missing file; returns all model files."""
    (folder / "scenes").mkdir(parents=True, exist_ok=True)
    for number in range(SCENES):
        picture = folder / "scenes" / f"{number:02}.jpg"
        if not picture.exists():
            picture.write_bytes(scene(number)[0])
    net = net or seeded()
    example = torch.zeros(_EXAMPLE_BATCH, 3, side, side)
    paths = [folder / name for name in WRITERS]
    for path in paths:
        if not path.exists():
            # The file has another name until it is complete: an interrupted export must not look like a model.
            begun = path.with_name(f"begun-{path.name}")
            with torch.no_grad():
                WRITERS[path.name](net, example, begun)
            begun.rename(path)
    return paths


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--small", action="store_true", help=f"widths {SMALL_WIDTHS}: the same answers at little cost")
    args = parser.parse_args()
    for path in export(args.folder, net=seeded(widths=SMALL_WIDTHS) if args.small else None):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
