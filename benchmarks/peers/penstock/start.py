"""`penstock up` with its durable default: every write is on the disk (`fsync = "always"`) before a request is answered."""

from __future__ import annotations

import os
import sys

import launch

EXAMPLES = launch.HERE.parents[2] / "examples"
SOURCES = {
    "noop": f"{launch.HERE / 'models.py'}:Square",
    "accelerator": f"{launch.HERE / 'models.py'}:Accelerator",
    "embeddings": f"{EXAMPLES / 'embeddings' / 'handler.py'}:Embeddings",
}

if __name__ == "__main__":
    config = launch.SCRATCH / "penstock.toml"
    # The wait is not set, because the batching policy learns when waiting pays.
    config.write_text(
        f'[store]\nstate_dir = "{launch.SCRATCH / "state"}"\nfsync = "always"\n'
        f"[gateway]\nport = {launch.PORT}\n"
        f'[models.peer]\nsource = "{SOURCES[launch.WORKLOAD]}"\nmax_batch_size = {launch.BATCH}\nthreads = 1\nworkers = 1\n'
    )
    command = [sys.executable, "-m", "penstock.cli.main", "up", str(config)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") and name != "REDIS_URL"}
    os.execve(command[0], command, {**own, "PENSTOCK_CONFIG": str(config)})
