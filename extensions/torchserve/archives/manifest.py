"""What an archive says of itself: MAR-INF/MANIFEST.json, in the form of every archiver since its first release."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import BadArchive
from penstock.extensions.torchserve.archives.kinds import MANIFEST, handler_module

MAX_MANIFEST_BYTES = 1 << 20
# TorchServe takes these two; LSP is its server of C++ models.
_RUNTIMES = ("python", "python2", "python3")
_TEXTS = {
    "modelName": "name",
    "handler": "handler",
    "serializedFile": "serialized_file",
    "modelFile": "model_file",
    "requirementsFile": "requirements_file",
    "configFile": "config_file",
}
_FILES = ("serializedFile", "modelFile", "requirementsFile", "configFile")
# Handlers that TorchServe brings along, by the name that a manifest gives them.
BUILT_IN_HANDLERS = frozenset(
    {
        "base_handler",
        "vision_handler",
        "image_classifier",
        "image_segmenter",
        "object_detector",
        "text_handler",
        "text_classifier",
    }
)


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """`name` is empty where there is none. Files are paths within the archive, empty where it has none. `whole` is the JSON
    object as it stands, which handlers read as `context.manifest`.
    """

    name: str = ""
    version: str = "1.0"
    handler: str = ""
    serialized_file: str = ""
    model_file: str = ""
    requirements_file: str = ""
    config_file: str = ""
    extensions: dict[str, Any] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)


def read_manifest(data: bytes, archive: str) -> ArchiveManifest:
    """Raises `BadArchive` with every fault. Keys of older archivers, and unknown ones, are left alone."""
    whole = _object(data, archive)
    model = whole.get("model")
    if not isinstance(model, dict):
        raise BadArchive(f"{archive}: {MANIFEST} has no object `model`, which names the handler and its files", hint=_HINT)
    faults = [*_text_faults(model), *_other_faults(whole, model)]
    if faults:
        raise BadArchive(f"{archive}: {MANIFEST} cannot be used: {'; '.join(faults)}", hint=_HINT)
    texts = {ours: str(model.get(theirs) or "") for theirs, ours in _TEXTS.items()}
    return ArchiveManifest(
        **texts, version=_version(model.get("modelVersion")), extensions=dict(model.get("extensions") or {}), whole=whole
    )


def absent_manifest(stem: str, handler: str = "") -> ArchiveManifest:
    """What TorchServe assumes of an archive without a manifest. `handler`: the server's default one."""
    model = {"modelName": stem, "modelVersion": "1.0", "handler": handler}
    return ArchiveManifest(stem, handler=handler, whole={"model": model, "runtime": "python"})


def absent_members(manifest: ArchiveManifest, has: Callable[[str], bool]) -> list[str]:
    """One sentence per file that the manifest names and the archive lacks. `has` tells whether a path is in the archive."""
    faults = []
    for key in _FILES:
        # Several weights may be listed with commas between them.
        for file in str(manifest.whole.get("model", {}).get(key) or "").split(","):
            if file.strip() and not has(file.strip()):
                faults.append(f"its manifest names the {key} {file.strip()!r}, which is not in it")
    if not manifest.handler:
        return [*faults, 'it names no handler; name one: options = { handler = "image_classifier" }']
    module, _ = handler_module(manifest.handler)
    if module not in BUILT_IN_HANDLERS and not (has(f"{module}.py") or has(f"{module}/__init__.py")):
        faults.append(
            f"its handler is {manifest.handler!r}, and neither {module}.py is in it nor is it a built-in handler "
            f"({', '.join(sorted(BUILT_IN_HANDLERS))})"
        )
    return faults


_HINT = "pack it again with torch-model-archiver"


def _object(data: bytes, archive: str) -> dict[str, Any]:
    if len(data) > MAX_MANIFEST_BYTES:
        raise BadArchive(f"{archive}: {MANIFEST} has more than {MAX_MANIFEST_BYTES:,} bytes", hint=_HINT)
    try:
        parsed = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadArchive(f"{archive}: {MANIFEST} is not valid JSON: {error}", hint=_HINT) from error
    if not isinstance(parsed, dict):
        raise BadArchive(f"{archive}: {MANIFEST} is not a JSON object but {type(parsed).__name__}", hint=_HINT)
    return parsed


def _text_faults(model: Mapping[str, Any]) -> list[str]:
    wrong = [key for key in _TEXTS if not isinstance(model.get(key), (str, type(None)))]
    faults = [f"model.{key} is {model[key]!r}, not text" for key in wrong]
    outside = [key for key in (*_FILES, "handler") if key not in wrong and _is_outside(str(model.get(key) or ""))]
    return faults + [f"model.{key} names {model[key]!r}, which lies outside the archive" for key in outside]


def _other_faults(whole: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    faults = []
    runtime = whole.get("runtime") or "python"
    if runtime == "LSP":
        faults.append("runtime LSP is TorchServe's server of C++ models, which penstock does not have")
    elif runtime not in _RUNTIMES:
        faults.append(f"Invalid RuntimeType value: {str(runtime)[:80]!a}; write python")
    if not isinstance(model.get("modelVersion"), (str, int, float, type(None))):
        faults.append(f"model.modelVersion is {model['modelVersion']!r}, not text")
    if not isinstance(model.get("extensions"), (dict, type(None))):
        faults.append(f"model.extensions is {model['extensions']!r}, not an object")
    return faults


def _version(value: Any) -> str:
    return "1.0" if value in (None, "") else str(value)


def _is_outside(path: str) -> bool:
    # Several weights may be listed with commas between them.
    files = [file.strip() for file in path.split(",")]
    return "\\" in path or "\0" in path or any(file.startswith("/") or ".." in file.split("/") for file in files)
