"""The end of a run: its files in their places, the manifest beside them, nothing else left behind."""

from __future__ import annotations

import time
from typing import Any

import msgspec

import penstock
from penstock.run import Run, RunCounts
from penstock.runs.files import exists, open_read
from penstock.runs.manifest import FileReport, Manifest, manifest_path, read_manifest, write_manifest
from penstock.runs.openai.run import OPENAI
from penstock.runs.run_files import RunFiles


def publish(run: Run, files: RunFiles, *, counts: RunCounts, version: str) -> dict[str, Any]:
    """What was published. Safe to repeat after a crash at any point of it."""
    told = files.sink.publish()
    if run.spec.kind != OPENAI:
        told["manifest"] = _manifest(run, files, told, counts=counts, version=version)
    files.close()
    files.discard()
    return told


def published_before(run: Run) -> Manifest | None:
    """The manifest of this very run, if all was put in place and only the store was not told any more."""
    name = manifest_path(run.spec.output)
    if run.spec.kind == OPENAI or not exists(name):
        return None
    with open_read(name) as file:
        manifest = read_manifest(file.read())
    return manifest if manifest.run_id == run.id else None


def _manifest(run: Run, files: RunFiles, told: dict[str, Any], *, counts: RunCounts, version: str) -> str:
    manifest = Manifest(
        run_id=run.id,
        model=run.spec.model,
        version=version,
        settings=run.spec,
        input=files.source.identity(),
        counts=counts,
        output=msgspec.convert(told["output"], FileReport),
        errors=msgspec.convert(told["errors"], FileReport | None),
        started_at=run.started_at or run.created_at,
        finished_at=time.time(),
        penstock_version=penstock.__version__,
    )
    return write_manifest(manifest, files.folder)
