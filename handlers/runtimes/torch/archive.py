"""Finds out what a torch model file is from its name and its table of contents. Nothing in the file is read as code."""

from __future__ import annotations

import json
import zipfile
from enum import StrEnum
from pathlib import Path
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.contract import kind_of


class FileKind(StrEnum):
    """The values appear in messages: "... of an exported program"."""

    EXPORTED = "an exported program"
    PACKAGE = "an AOTInductor package"
    SCRIPT = "a TorchScript program"
    WEIGHTS = "weights with a model class"


def file_kind(path: Path) -> FileKind:
    """The file's kind. Raises `HandlerLoadError` for a `.pt2` that is neither of its two kinds."""
    if kind_of(path) == ".safetensors":
        return FileKind.WEIGHTS
    names = _members(path)
    if kind_of(path) == ".pt2":
        return _pt2_kind(path, names)
    # torch.jit.save writes the compiled code's constants; torch.save, of weights or of a whole module, never does.
    return FileKind.SCRIPT if any(name.endswith("/constants.pkl") for name in names) else FileKind.WEIGHTS


def _pt2_kind(path: Path, names: list[str]) -> FileKind:
    if any("data/aotinductor/" in name for name in names):
        return FileKind.PACKAGE
    # The second pattern is the layout of torch 2.6.
    if any("models/" in name or name.endswith("serialized_exported_program.json") for name in names):
        return FileKind.EXPORTED
    raise HandlerLoadError(
        f"{path.name} holds neither an exported program nor an AOTInductor package; "
        "write it with torch.export.save or torch._inductor.aoti_compile_and_package"
    )


def package_target(path: Path) -> dict[str, Any]:
    """What an AOTInductor package was compiled for (AOTI_DEVICE_KEY, AOTI_CPU_ISA, ...); empty if the package does not say."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith("wrapper_metadata.json"):
                metadata = json.loads(archive.read(name))
                return metadata if isinstance(metadata, dict) else {}
    return {}


def _members(path: Path) -> list[str]:
    """The names in the archive; empty for a file that is no archive (weights of torch before 1.6)."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        return []
