"""The manifest of a finished run: what went in, what came out, and with which model and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from penstock.run import RunCounts, RunSpec
from penstock.runs.files import is_url, local_path, replacing, upload

SUFFIX = ".manifest.json"


class FileReport(Struct, frozen=True, kw_only=True):
    """One published file. `bytes` and `sha256` are of the file as it lies there."""

    path: str
    rows: int
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """Moments are Unix seconds. `errors` is None where no row failed; `input` is the source's identity."""

    run_id: str
    model: str
    version: str
    settings: RunSpec
    input: dict[str, Any]
    counts: RunCounts
    output: FileReport
    errors: FileReport | None
    started_at: float
    finished_at: float
    penstock_version: str


def manifest_path(output: str) -> str:
    return output + SUFFIX


def write_manifest(manifest: Manifest, state: Path) -> str:
    """Where the manifest now lies, beside the output, put there whole. `state`: a local folder to build it in for a URL."""
    name = manifest_path(manifest.settings.output)
    path = state / f"manifest{SUFFIX}" if is_url(name) else Path(local_path(name))
    with replacing(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    if is_url(name):
        upload(path, name)
    return name


def read_manifest(data: bytes) -> Manifest:
    return msgspec.json.decode(data, type=Manifest)
