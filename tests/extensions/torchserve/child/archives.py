"""Unpacked archives for tests, and a process that looks as it did before once the test is over."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.extensions.torchserve.worker.archives import LOADER
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.inputs.request import packed
from penstock.job import Payload
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import Failed, Item, JobFacts, Outcome, Output

FACTS = JobFacts("job-1", owner="team-a")


def write_archive(folder: Path, source: str, **model: Any) -> Path:
    """A folder with a manifest and `handler.py`. `model`: further entries of the manifest's model."""
    (folder / "MAR-INF").mkdir(parents=True, exist_ok=True)
    said = {"modelName": "mine", "modelVersion": "1.0", "handler": "handler.py", **model}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"createdOn": "", "runtime": "python", "model": said}))
    (folder / "handler.py").write_text(source)
    return folder


@contextmanager
def archive_process() -> Iterator[None]:
    """What an archive's handler changes of its process is undone: the folder, the path, the modules."""
    folder, path, modules, finders = Path.cwd(), sys.path[:], set(sys.modules), sys.meta_path[:]
    try:
        yield
    finally:
        os.chdir(folder)
        sys.path[:], sys.meta_path[:] = path, finders
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if name.partition(".")[0] == "ts" or not file.startswith((sys.prefix, sys.base_prefix, str(folder))):
                del sys.modules[name]


def loaded(folder: Path, source: str, *, options: dict[str, Any] | None = None, **model: Any) -> Loaded:
    return load(str(write_archive(folder, source, **model)), "mine", options=options, loader=LOADER)


def item(data: bytes, media: str = "application/json", headers: dict[str, str] | None = None, **said: Any) -> Item:
    """The input of one job as it is stored."""
    payload = packed(Payload(media, data), headers=headers or {}, query={})
    return Item(payload.content_type, payload.data, facts=FACTS, **said)


def outcomes(model: Loaded, *items: Item) -> list[Outcome]:
    return run_batch(model, items).outcomes


def output(model: Loaded, *items: Item) -> Output:
    found = outcomes(model, *items)[0]
    assert isinstance(found, Output), found
    return found


def failed(outcome: Outcome) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome
