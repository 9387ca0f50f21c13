"""Writes the network as a model file of every kind: `python examples/vision/export.py [FOLDER]`.

model.onnx, model.pt2 (torch.export), model.aoti.pt2 (AOTInductor: compiled for this machine's CPU where there is g++),
model.ts (TorchScript) and model.safetensors (weights alone), some 45 MB each. Needs torch, onnxscript and safetensors:
pip install 'penstock-inference[torch]' onnx onnxscript.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from net import CLASSES, WIDTHS, ResNet18, seeded
from torch import Tensor

FOLDER = Path(__file__).parent / "build"
SIDE = 224
SMALL_WIDTHS = (8, 8, 16, 16)
COMPILED = "model.aoti.pt2"
# More than 1 image: some exporters fix an axis whose example has the size 1.
_EXAMPLE_BATCH = 2


def write_onnx(net: ResNet18, example: Tensor, path: Path) -> None:
    with warnings.catch_warnings():
        # torch's exporter warns about its own use of pytree.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (example,),
            str(path),
            dynamo=True,
            input_names=["image"],
            output_names=["scores"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            verbose=False,
        )


def exported(net: ResNet18, example: Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(net, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=256)},))


def write_exported(net: ResNet18, example: Tensor, path: Path) -> None:
    torch.export.save(exported(net, example), path)


def write_compiled(net: ResNet18, example: Tensor, path: Path) -> None:
    with warnings.catch_warnings():
        # torch's compiler warns about its own imports.
        warnings.simplefilter("ignore")
        # Compiled in this process: for one network a pool of compilers costs more than it saves.
        configs = {"compile_threads": 1}
        torch._inductor.aoti_compile_and_package(exported(net, example), package_path=str(path), inductor_configs=configs)


def write_script(net: ResNet18, example: Tensor, path: Path) -> None:
    with warnings.catch_warnings():
        # torch recommends torch.export instead; this example shows the older TorchScript.
        warnings.simplefilter("ignore")
        torch.jit.trace(net, example).save(str(path))


def write_weights(net: ResNet18, example: Tensor, path: Path) -> None:
    from safetensors.torch import save_file

    save_file(net.state_dict(), path)


WRITERS: dict[str, Callable[[ResNet18, Tensor, Path], None]] = {
    "model.onnx": write_onnx,
    "model.pt2": write_exported,
    COMPILED: write_compiled,
    "model.ts": write_script,
    "model.safetensors": write_weights,
}


def has_compiler() -> bool:
    return shutil.which("g++") is not None


def export(folder: Path, *, net: ResNet18 | None = None, side: int = SIDE, names: Sequence[str] = tuple(WRITERS)) -> list[Path]:
    """Write the missing ones of `names`; returns all of them. Without g++ there is no compiled model."""
    folder.mkdir(parents=True, exist_ok=True)
    net = net or seeded()
    example = torch.zeros(_EXAMPLE_BATCH, 3, side, side)
    paths = [folder / name for name in names if name != COMPILED or has_compiler()]
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
    parser.add_argument("--small", action="store_true", help=f"widths {SMALL_WIDTHS} instead of {WIDTHS}, a few KB per file")
    parser.add_argument("--only", nargs="+", choices=WRITERS, default=tuple(WRITERS), metavar="NAME", help="write no others")
    args = parser.parse_args()
    net = seeded(widths=SMALL_WIDTHS, classes=CLASSES) if args.small else seeded()
    for path in export(args.folder, net=net, names=args.only):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    if COMPILED in args.only and not has_compiler():
        print(f"{args.folder / COMPILED}  left out: torch compiles it with g++, which is not installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
