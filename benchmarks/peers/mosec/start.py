"""Mosec with one stage of one worker. A stage without batching gets a single input instead of a list."""

from __future__ import annotations

import sys

import launch
import mosec


class Stage(mosec.Worker):
    def __init__(self):
        super().__init__()
        self.function = launch.load_function()

    def deserialize(self, data):
        return data if launch.RAW else super().deserialize(data)

    def forward(self, data):
        return self.function(data) if launch.BATCH > 1 else self.function([data])[0]


if __name__ == "__main__":
    # Mosec reads options only from the command line.
    sys.argv += ["--address", "127.0.0.1", "--port", str(launch.PORT), "--timeout", "60000", "--log-level", "warning"]
    sys.argv += ["--path", str(launch.SCRATCH / "mosec")]
    server = mosec.Server()
    server.append_worker(Stage, num=1, max_batch_size=launch.BATCH, max_wait_time=launch.WAIT_MS if launch.BATCH > 1 else 0)
    server.run()
