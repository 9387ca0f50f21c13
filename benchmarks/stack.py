"""The stack that benchmarks measure: `penstock up` with the two stand-in models of `examples/`, or its parts one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.embedded.server import EmbeddedServer, Fsync
from penstock.loadtest.stack import Processes, await_ready, running

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# The queue must not refuse a request, because refusals would count as fast answers.
_NO_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True)
class StackPlan:
    """`folder` must lie on a real disk, because fsync in memory costs nothing and would improve every figure."""

    folder: Path
    port: int
    fsync: str = "always"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def write_config(plan: StackPlan) -> Path:
    """A penstock.toml with the two stand-in models, in the plan's folder."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    lines = [
        "[store]",
        f'state_dir = "{plan.folder / "state"}"',
        f'fsync = "{plan.fsync}"',
        "[gateway]",
        f"port = {plan.port}",
        *_model("noop", EXAMPLES / "noop.py", max_batch_size=64),
        *_model("accel", EXAMPLES / "accelerator.py", max_batch_size=32),
    ]
    path = plan.folder / "penstock.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _model(name: str, source: Path, *, max_batch_size: int) -> list[str]:
    return [
        f"[models.{name}]",
        f'source = "{source}"',
        f"max_batch_size = {max_batch_size}",
        f"max_queue_depth = {_NO_LIMIT}",
    ]


@contextmanager
def whole_stack(plan: StackPlan, extra: Mapping[str, str] | None = None) -> Iterator[Processes]:
    """`penstock up` with both models, ready to answer. `extra`: further environment variables."""
    config = write_config(plan)
    variables = {"PENSTOCK_CONFIG": str(config), **(extra or {})}
    with running(Processes(plan.folder, variables), [["up", str(config)]]) as processes:
        await_ready(plan.port, processes, path="/readyz")
        yield processes


@dataclass(frozen=True, slots=True)
class StackServer:
    url: str
    pid: int


@contextmanager
def store_server(plan: StackPlan) -> Iterator[StackServer]:
    """The embedded store as `penstock up` runs it, for processes that are started one by one."""
    write_config(plan)
    fsync: Fsync = "everysec" if plan.fsync == "everysec" else "always"
    with EmbeddedServer(plan.folder / "state", fsync=fsync) as server:
        assert server.pid is not None
        yield StackServer(server.url, server.pid)


def stores_environment(plan: StackPlan, url: str) -> dict[str, str]:
    """The variables that point a single gateway or worker at a running store."""
    return {"PENSTOCK_CONFIG": str(plan.folder / "penstock.toml"), "PENSTOCK_REDIS_URL": url}


def on_memory(folder: Path) -> bool:
    """Whether the folder lies in a memory file system."""
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    here = folder.resolve()
    kind = next((mounts[place] for place in (here, *here.parents) if place in mounts), "")
    return kind in ("tmpfs", "ramfs")
