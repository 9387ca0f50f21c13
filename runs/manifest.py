"""The manifest of a finished run: its input, its output files, its model and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from penstock.run import RunCounts, RunSpec
from penstock.runs.files import atomic_write, is_url, local_path, upload

SUFFIX = ".manifest.json"


class FileReport(Struct, frozen=True, kw_only=True):
    """One published file. `bytes` and `sha256` describe the file as published."""

    path: str
    rows: int
    bytes: int
    sha256: str


class ManifestPart(Struct, frozen=True, kw_only=True):
    """One part of a run, in their order. `first_file` and `last_file` are the files of the input in which it begins and ends;
    `begin` and `end` as in `RunPart`. `bytes` and `sha256`: of its rows as its driver wrote them; for JSON Lines, of the
    part's stretch of the output.
    """

    number: int
    first_file: str
    last_file: str
    begin: dict[str, int] | None
    end: int | None
    rows: int
    failed: int
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Times are Unix seconds. `errors` is None if no row failed; `input` is the source's identity; `parts`: if it has many."""

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
    parts: list[ManifestPart] = []

    @property
    def is_whole(self) -> bool:
        """Whether every row ran: not so in a run that was cancelled or expired."""
        return self.counts.total in (None, self.counts.done + self.counts.failed)

    @property
    def files(self) -> dict[str, Any]:
        """The published files as plain values, as `publish` reports them."""
        return {name: msgspec.to_builtins(report) for name, report in (("output", self.output), ("errors", self.errors))}


# Made while one thread loads this module, the one of FileReport for `convert`: D106.
_MANIFEST = msgspec.json.Decoder(Manifest)
msgspec.json.Decoder(FileReport)


def manifest_path(output: str) -> str:
    return output + SUFFIX


def write_manifest(manifest: Manifest, state: Path) -> str:
    """Write the manifest beside the output atomically; returns its name. `state`: a local folder to build it in
    if the output is a URL.
    """
    name = manifest_path(manifest.settings.output)
    path = state / f"manifest{SUFFIX}" if is_url(name) else Path(local_path(name))
    with atomic_write(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    if is_url(name):
        upload(path, name)
    return name


def read_manifest(data: bytes) -> Manifest:
    return _MANIFEST.decode(data)
