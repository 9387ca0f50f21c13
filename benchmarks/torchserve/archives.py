"""The archives of the comparison, built by the stock `torch-model-archiver`. Each stands for features of public handlers."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

SOURCES = Path(__file__).resolve().parent / "models"
_BUILD_S = 120.0
_CLASSES = 6
_SEED = 20


@dataclass(frozen=True, slots=True)
class Archive:
    """`shows` says which features it stands for. `source`: its folder of sources, by default that of its name. `handler`: a
    file of that folder, or the name of a built-in handler. `prepare` writes what the sources do not hold into a folder and
    returns further options of the archiver. `needs` are packages without which it cannot be built or run. `settings` are lines
    of config.properties that it needs for itself.
    """

    name: str
    shows: str
    source: str = ""
    handler: str = "handler.py"
    version: str = "1.0"
    format: str = "default"
    prepare: Callable[[Path], Mapping[str, str]] = field(default=lambda folder: {})
    needs: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def is_buildable(self) -> bool:
        return all(find_spec(package) is not None for package in self.needs)


def _save_traced(model: Any, example: Any, path: Path) -> None:
    import torch

    with warnings.catch_warnings():
        # TorchScript is deprecated, and it is what archives hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(model, example), path)


def _scripted(folder: Path) -> Mapping[str, str]:
    import torch

    torch.manual_seed(_SEED)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    path = folder / "scores.pt"
    _save_traced(model, torch.zeros(1, 4), path)
    return {"serialized-file": str(path)}


def _digits(folder: Path) -> Mapping[str, str]:
    import torch

    torch.manual_seed(_SEED)
    # The names are those of models/digits/network.py.
    weights = {
        "hidden.weight": torch.randn(8, 16),
        "hidden.bias": torch.randn(8),
        "out.weight": torch.randn(3, 8),
        "out.bias": torch.randn(3),
    }
    torch.save(weights, folder / "digits.pt")
    names = {str(place): [f"n{place:08d}", name] for place, name in enumerate(("zero", "one", "two"))}
    (folder / "index_to_name.json").write_text(json.dumps(names))
    return {
        "serialized-file": str(folder / "digits.pt"),
        "model-file": str(SOURCES / "digits" / "network.py"),
        "extra-files": str(folder / "index_to_name.json"),
    }


def _pictures(folder: Path) -> Mapping[str, str]:
    import torch

    torch.manual_seed(_SEED)
    layers = (torch.nn.Conv2d(3, 8, 7, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8, _CLASSES)).eval()
    path = folder / "pictures.pt"
    _save_traced(model, torch.zeros(1, 3, 224, 224), path)
    (folder / "index_to_name.json").write_text(json.dumps({str(place): f"class {place}" for place in range(_CLASSES)}))
    return {"serialized-file": str(path), "extra-files": str(folder / "index_to_name.json")}


def _settings(folder: Path) -> Mapping[str, str]:
    (folder / "setup_config.json").write_text(json.dumps({"name": "Ada"}))
    with zipfile.ZipFile(folder / "words.zip", "w") as words:
        words.writestr("words.py", "def greeting(name):\n    return f'Good morning, {name}'\n")
    return {"extra-files": f"{folder / 'setup_config.json'},{folder / 'words.zip'}"}


def _configured(folder: Path) -> Mapping[str, str]:
    return {"config-file": str(SOURCES / "configured" / "model-config.yaml")}


_TORCH = ("torch",)
ARCHIVES = (
    Archive("echo", "module-level `handle`; rows of JSON, text, bytes and forms"),
    Archive("noop", "a class without a base, zip"),
    Archive("noop_stored", "the same, zip without compression", source="noop", format="zip-store"),
    Archive("noop_tgz", "the same, tar.gz", source="noop", format="tgz"),
    Archive("noop_folder", "the same, an unpacked folder", source="noop", format="no-archive"),
    Archive(
        "scores",
        "`base_handler` by name, TorchScript, the envelope `body`",
        handler="base_handler",
        prepare=_scripted,
        needs=_TORCH,
        settings=("service_envelope=body",),
    ),
    Archive(
        "digits",
        "`BaseHandler` with stages of its own, a model file, a state dict, index_to_name.json, form field `data`",
        version="2.0",
        prepare=_digits,
        needs=_TORCH,
    ),
    Archive(
        "pictures",
        "`image_classifier` by name, pictures as files and base64, top 5 classes",
        handler="image_classifier",
        prepare=_pictures,
        needs=("torch", "PIL"),
    ),
    Archive("first_row", "only `requests[0]`", needs=_TORCH),
    Archive("rows", "a loop over rows, PIL, base64", needs=("torch", "PIL")),
    Archive("fields", "form fields by names of their own, bytes with a media type"),
    Archive("headers", "request headers and ids, status, headers and media type of the answer"),
    Archive("counted", "`context.metrics`", needs=_TORCH),
    Archive("explained", "`get_insights`", needs=_TORCH),
    Archive("settings", "setup_config.json, a zip on sys.path, manifest, system_properties", prepare=_settings, needs=_TORCH),
    Archive("refusals", "`PredictionException`, exceptions, wrong outputs"),
    Archive("configured", "model-config.yaml and `model_yaml_config`", prepare=_configured),
    Archive("described", "`describe_handle`", needs=_TORCH),
    Archive("steps", "`send_intermediate_predict_response`"),
    Archive("envelope", "the envelope `json`", needs=_TORCH, settings=("service_envelope=json",)),
)

# Of the measurement of losses; no exchange is about it.
SLOW = Archive("slow", "50 ms per call")


def build(archive: Archive, store: Path, scratch: Path) -> None:
    """Builds the archive into `store`. Raises `PenstockError` with what the archiver says if it refuses."""
    folder = scratch / archive.name
    folder.mkdir(parents=True, exist_ok=True)
    source = SOURCES / (archive.source or archive.name)
    is_file = archive.handler.endswith(".py")
    options = {
        "model-name": archive.name,
        "version": archive.version,
        "handler": str(source / archive.handler) if is_file else archive.handler,
        "export-path": str(store),
        "archive-format": archive.format,
        **archive.prepare(folder),
    }
    _run([sys.executable, "-m", "model_archiver.model_packaging", "--force", *_flags(options)])


def _flags(options: Mapping[str, str]) -> list[str]:
    return [text for name, value in options.items() for text in (f"--{name}", value)]


def _run(command: Sequence[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BUILD_S)
    if ended.returncode != 0:
        raise PenstockError(f"{' '.join(command[2:8])} ended with {ended.returncode}: {ended.stderr.strip()[-600:]}")


def file_name(archive: Archive) -> str:
    """What the archiver calls the result in the model store."""
    return archive.name + {"tgz": ".tar.gz", "no-archive": ""}.get(archive.format, ".mar")
