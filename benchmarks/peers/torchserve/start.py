"""Writes a model folder and the settings, then becomes `torchserve --foreground`. Needs Java 17."""

from __future__ import annotations

import json
import os
import shutil
import socket

import launch

MODEL = "peer"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
    lines = [
        f"inference_address=http://127.0.0.1:{launch.PORT}",
        f"management_address=http://127.0.0.1:{free_port()}",
        f"metrics_address=http://127.0.0.1:{free_port()}",
        f"grpc_inference_port={free_port()}",
        f"grpc_management_port={free_port()}",
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
