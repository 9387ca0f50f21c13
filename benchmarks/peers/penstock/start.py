"""`penstock up` with its durable default: every write is on the disk (`fsync = "always"`) before a request is answered."""

from __future__ import annotations

import os
import sys

import launch

EXAMPLES = launch.HERE.parents[2] / "examples"
SOURCES = {
    "noop": f"{launch.HERE / 'models.py'}:Square",
    "accelerator": f"{launch.HERE / 'models.py'}:Accelerator",
    "accelerator_100k": f"{launch.HERE / 'models.py'}:BytesAccelerator",
    "embeddings": f"{EXAMPLES / 'embeddings' / 'handler.py'}:Embeddings",
}
# Handlers that this server may run instead on the embeddings.
OWN_HANDLERS = {
    "penstock-cost": f"{launch.HERE / 'models.py'}:CostedTexts",
    "penstock-plain": f"{launch.HERE / 'models.py'}:PlainTexts",
}


def model_table() -> str:
    source = OWN_HANDLERS.get(launch.NAME)
    options = f'options.model_folder = "{launch.MODEL_FOLDER}"\n' if source else ""
    source = source or SOURCES[launch.WORKLOAD]
    return f'[models.peer]\nsource = "{source}"\nmax_batch_size = {launch.BATCH}\nthreads = 1\nslots = 1\n{options}'


if __name__ == "__main__":
    config = launch.SCRATCH / "penstock.toml"
    # The wait is not set, because the batching policy learns when waiting pays.
    config.write_text(
        f'[store]\nstate_dir = "{launch.SCRATCH / "state"}"\nfsync = "always"\n[gateway]\nport = {launch.PORT}\n{model_table()}'
    )
    command = [sys.executable, "-m", "penstock", "up", str(config)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") and name != "REDIS_URL"}
    os.execve(command[0], command, {**own, "PENSTOCK_CONFIG": str(config)})
