"""The stack behind the tests of rollouts: a worker, a gateway, and sources that versions are loaded from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from penstock.broker.store.sync import RedisStore
from tests.eventually import eventually
from tests.integration.worker_process import WorkerProcess
from tests.stack import Stack

CODE = "import time, penstock\n\n@penstock.model\ndef echo(x: int) -> str:\n    time.sleep({1})\n    return 'version {0}'\n"
# No job ends before the file is there, so that jobs still wait when every gateway refuses the withdrawn version.
HELD = """
import os
import time
import penstock

@penstock.model
def echo(x: int) -> str:
    while not os.path.exists({0!r}):
        time.sleep(0.01)
    return 'held'
"""
# One job at a time, and none of the model's own before the first.
SINGLE = {"max_batch_size": 1, "warm_up": False}
QUICK = {"lease_s": 3.0, "beat_s": 0.3}


class RolloutStack(Stack):
    """Versions come and go; the sources of those to load lie in a folder of the stack's (`sources`)."""

    def new_worker(self, name: str, models: Mapping[str, Any] | None = None, **settings: Any) -> WorkerProcess:
        return super().new_worker(name, models, **{**QUICK, "model_dir": str(self.folder / "models"), **settings})

    def is_loaded(self, model: str, version: str) -> bool:
        return bool(self.client.model(model)["versions"].get(version, {}).get("ready_slots"))

    def load(self, model: str, version: str, source: str, **settings: Any) -> None:
        """Load a version, and wait until it is ready."""
        self.client.load_version(model, version, source, settings=settings)
        eventually(lambda: self.is_loaded(model, version), timeout_s=60.0)

    def answer(self, model: str, version: str = "") -> Any:
        return self.client.submit(model, 1, version=version).result(60.0)

    def slots_of_version(self, model: str, version: str) -> list[dict[str, Any]]:
        """All slots of the model, if each of them runs this version; otherwise an empty list."""
        slots = self.slots(model)
        return slots if {slot["version"] for slot in slots} == {version} else []

    def await_only(self, model: str, version: str) -> list[dict[str, Any]]:
        return eventually(lambda: self.slots_of_version(model, version), timeout_s=60.0)

    def is_forgotten(self, model: str, version: str) -> bool:
        """Whether neither the registry nor a rollout has an entry of the version."""
        with closing(RedisStore(self.redis_url)) as store:
            info = next((info for info in store.models() if info.name == model), None)
            rollout = store.rollouts().get(model)
        return rollout is None and (info is None or version not in info.versions)

    def await_forgotten(self, model: str, version: str) -> None:
        eventually(lambda: self.is_forgotten(model, version), timeout_s=60.0)

    def hold(self, name: str) -> Path:
        """A source whose jobs wait until the returned file is there."""
        gate = self.folder / f"{name}.open"
        (self.folder / "models" / f"{name}.py").write_text(HELD.format(str(gate)))
        return gate


def sources(folder: Path) -> Path:
    (folder / "models").mkdir()
    (folder / "one.py").write_text(CODE.format(1, 0))
    for version, pause_s in ((2, 0.01), (3, 0)):
        (folder / "models" / f"v{version}.py").write_text(CODE.format(version, pause_s))
    (folder / "models" / "broken.py").write_text("raise RuntimeError('no such weights')\n")
    return folder


@contextmanager
def unnamed(folder: Path) -> Iterator[RolloutStack]:
    """A gateway whose settings name no model, on a store of its own: it hears of models from workers, which a scene starts."""
    folder.mkdir()
    with RolloutStack(sources(folder), {}) as stack:
        stack.start_gateway()
        yield stack
