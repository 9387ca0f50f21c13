"""Workflows beside TorchServe: built by the stock archivers, and what a release that still registers them answered.

TorchServe 0.12 refuses to register workflows, so the answers are those of `RELEASE`. `python -m benchmarks.torchserve
workflows` records them again; it needs Java, and the environment of `make bench-peers`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from benchmarks.torchserve import servers
from benchmarks.torchserve.archives import SOURCES
from benchmarks.torchserve.differences import MeantDifference
from benchmarks.torchserve.exchanges import JSON, Exchange, KeptAnswer, send

RELEASE = "0.10.0"
ANSWERS = Path(__file__).resolve().parents[1] / "results" / "torchserve_workflows.json"
WORKFLOWS = ("line", "fork")
_SOURCE = SOURCES / "workflow"
_OLD = servers.ROOT / "build" / f"torchserve-{RELEASE}"
_BUILD_S = 120.0


def build_models(store: Path) -> None:
    """Pack the models of the nodes with `torch-model-archiver`."""
    for name in ("double", "negate"):
        about = ["--model-name", name, "--version", "1.0", "--handler", str(_SOURCE / f"{name}.py")]
        _run("model_archiver.model_packaging", *about, "--export-path", str(store), "--force")


def build_workflows(store: Path) -> None:
    """Pack the workflows with `torch-workflow-archiver`."""
    for name in WORKFLOWS:
        about = ["--workflow-name", name, "--spec-file", str(_SOURCE / f"{name}.yaml"), "--export-path", str(store), "--force"]
        _run("workflow_archiver.workflow_packaging", *about, "--handler", str(_SOURCE / "functions.py"))


def _run(module: str, *words: str) -> None:
    # The archiver of workflows empties a folder of the workflow's name in the temporary folder.
    with tempfile.TemporaryDirectory() as own:
        command, env = [sys.executable, "-m", module, *words], {**os.environ, "TMPDIR": own}
        subprocess.run(command, check=True, capture_output=True, timeout=_BUILD_S, env=env)


def exchanges() -> list[Exchange]:
    """In the order in which they are sent, to a server with both workflows registered."""

    def managed(name: str, path: str, method: str = "GET") -> Exchange:
        return Exchange("", name, path, method=method, port="management")

    return [
        Exchange("line", "bytes", "/wfpredict/line", b'{"n": 4}'),
        Exchange("line", "JSON", "/wfpredict/line", b'{"n": 4}', JSON),
        Exchange("fork", "JSON", "/wfpredict/fork", b'{"n": 4}', JSON),
        Exchange("fork", "a node that raises", "/wfpredict/fork", b'{"n": 666}', JSON),
        Exchange("", "an unknown workflow", "/wfpredict/nobody", b"{}", JSON),
        managed("describe", "/workflows/line"),
        managed("describe what forks", "/workflows/fork"),
        managed("describe an unknown one", "/workflows/nobody"),
        managed("list", "/workflows"),
        managed("register again", "/workflows?url=fork.war", "POST"),
        managed("register without a url", "/workflows", "POST"),
        managed("register what is not there", "/workflows?url=nothing.war", "POST"),
        managed("unregister an unknown one", "/workflows/nobody", "DELETE"),
    ]


MEANT = (
    MeantDifference(
        "a node that fails is 503 `Prediction failed`",
        "as for a model that fails; TorchServe has 500 `Error executing` and the node, which the job's timeline names here",
        lambda found: found.key == "fork: a node that raises",
    ),
    MeantDifference(
        "`batchSize` and `maxBatchDelay` of a workflow are those of its first node",
        "each node has its own; TorchServe shows what holds for nodes that say nothing",
        lambda found: found.key.startswith("management: describe") and not found.key.endswith("unknown one"),
    ),
)


def recorded() -> dict[str, KeptAnswer]:
    """What TorchServe answered when it was last asked."""
    return {key: KeptAnswer(**fields) for key, fields in json.loads(ANSWERS.read_text()).items()}


def record(folder: Path) -> None:
    """Ask a TorchServe of `RELEASE`, and keep what it answers."""
    site = servers.make_site(folder / "site", [], [f"workflow_store={folder / 'site' / 'workflows'}"])
    (folder / "site" / "workflows").mkdir()
    build_models(site.store)
    build_workflows(folder / "site" / "workflows")
    with _server(site):
        _await(site.management)
        for name in WORKFLOWS:
            answer = send(Exchange("", "", f"/workflows?url={name}.war", method="POST"), site.management)
            assert answer.status == 200, answer
        found = {exchange.key: asdict(send(exchange, site.ports[exchange.port])) for exchange in exchanges()}
    ANSWERS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _server(site: servers.Site) -> AbstractContextManager[servers.ModelServer]:
    """The old release runs in the environment of the new one, before which it is found."""
    python = servers.PEERS / "torchserve" / "bin" / "python"
    if not _OLD.exists():
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(_OLD)]
        subprocess.run([*pip, f"torchserve=={RELEASE}"], check=True)
    words = ["--start", "--foreground", "--ncs", "--model-store", str(site.store), "--ts-config", str(site.config)]
    command = [str(python), "-c", "from ts.model_server import start; start()", *words]
    return servers.started(site, command, {**servers.peer_variables(site), "PYTHONPATH": str(_OLD)})


def _await(port: int) -> None:
    give_up_at = time.monotonic() + _BUILD_S
    while True:
        try:
            send(Exchange("", "", "/workflows", method="GET"), port)
            return
        except OSError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.2)
