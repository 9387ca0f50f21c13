"""Writes a model folder and the settings, then becomes `torchserve --foreground`. Needs Java 17."""

from __future__ import annotations

import json
import os
import shutil
import socket
from contextlib import ExitStack

import launch

MODEL = "peer"


def free_ports(count: int) -> list[int]:
    """Different ports, because all are held until the last is known."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def write_model() -> None:
    """An unpacked archive: the handler and a manifest."""
    folder = launch.SCRATCH / "store" / MODEL
    (folder / "MAR-INF").mkdir(parents=True)
    shutil.copy(launch.HERE / "handler.py", folder)
    model = {"modelName": MODEL, "handler": "handler.py", "modelVersion": "1.0"}
    manifest = {"createdOn": "", "runtime": "python", "model": model, "archiverVersion": "0.12.0"}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))


def write_settings() -> str:
    batching = {"batchSize": launch.BATCH, "maxBatchDelay": launch.WAIT_MS}
    version = {"defaultVersion": True, "marName": MODEL, "minWorkers": 1, "maxWorkers": 1, "responseTimeout": 120, **batching}
    management, metrics, grpc_inference, grpc_management = free_ports(4)
    lines = [
        f"inference_address=http://127.0.0.1:{launch.PORT}",
        f"management_address=http://127.0.0.1:{management}",
        f"metrics_address=http://127.0.0.1:{metrics}",
        f"grpc_inference_port={grpc_inference}",
        f"grpc_management_port={grpc_management}",
        f"model_store={launch.SCRATCH / 'store'}",
        f"load_models={MODEL}",
        "job_queue_size=1000",
        f"models={json.dumps({MODEL: {'1.0': version}})}",
    ]
    path = launch.SCRATCH / "config.properties"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


if __name__ == "__main__":
    write_model()
    settings = write_settings()
    # TorchServe writes its pid file to TEMP, and its logs to LOG_LOCATION instead of the current folder.
    own = {"TEMP": str(launch.SCRATCH), "LOG_LOCATION": str(launch.SCRATCH), "METRICS_LOCATION": str(launch.SCRATCH)}
    path = f"{launch.BIN}{os.pathsep}{os.environ['PATH']}"
    command = [str(launch.BIN / "torchserve"), "--start", "--foreground", "--ncs", "--ts-config", settings]
    command += ["--disable-token-auth", "--model-store", str(launch.SCRATCH / "store")]
    os.execve(command[0], command, {**os.environ, **own, "PATH": path})
