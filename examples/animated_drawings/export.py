"""Writes the two model files and drawings to try: `python examples/animated_drawings/export.py [FOLDER]`.

detector/model.pt2, pose.pt2 (torch.export), some 15 MB each, and drawings/*.jpg. Needs torch and Pillow:
pip install 'penstock-inference[torch,images]'.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The detector is that of examples/detection: its body of a figure is one of the discs that it finds.
sys.path.append(str(HERE.parent / "detection"))

import torch  # noqa: E402
from drawings import drawing  # noqa: E402
from net import WIDTHS  # noqa: E402
from net import seeded as seeded_detector  # noqa: E402
from pose_net import SIDE, seeded  # noqa: E402

FOLDER = HERE / "build"
SMALL_WIDTHS = (8, 8, 16)
DRAWINGS = 8
_DETECTOR_SIDE = 320
_MOST = 64


def _written(path: Path, net: Callable[[], torch.nn.Module], example: tuple[torch.Tensor, ...]) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    batch = torch.export.Dim("batch", min=1, max=_MOST)
    with torch.no_grad():
        program = torch.export.export(net(), example, dynamic_shapes=tuple({0: batch} for _ in example))
    # The file has another name until it is complete: an interrupted export must not look like a model.
    begun = path.with_name(f"begun-{path.name}")
    torch.export.save(program, begun)
    begun.rename(path)


def export(folder: Path, widths: tuple[int, int, int] = WIDTHS) -> list[Path]:
    """Write every missing file; returns the model files."""
    (folder / "drawings").mkdir(parents=True, exist_ok=True)
    for number in range(DRAWINGS):
        picture = folder / "drawings" / f"{number:02}.jpg"
        if not picture.exists():
            picture.write_bytes(drawing(number).jpeg)
    detector, pose = folder / "detector" / "model.pt2", folder / "pose.pt2"
    # More than 1 image: an axis whose example has the size 1 would be fixed.
    _written(detector, lambda: seeded_detector(widths=widths), (torch.zeros(2, 3, _DETECTOR_SIDE, _DETECTOR_SIDE),))
    _written(pose, lambda: seeded(widths=widths), (torch.zeros(2, 3, SIDE, SIDE), torch.ones(2, 3)))
    return [detector, pose]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--small", action="store_true", help=f"widths {SMALL_WIDTHS}: the same answers at little cost")
    args = parser.parse_args()
    for path in export(args.folder, SMALL_WIDTHS if args.small else WIDTHS):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
