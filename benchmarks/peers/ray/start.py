"""Ray Serve with one replica behind its HTTP proxy, and Ray's own switch for throughput."""

from __future__ import annotations

import os
import signal

os.environ |= {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_USAGE_STATS_ENABLED": "0"}

import launch
import ray
from ray import serve
from starlette.requests import Request

# Ray starts the replica in another process, whose environment must hold what it imports.
VARIABLES = {name: value for name, value in os.environ.items() if name.startswith(("PEER_", "RAY_SERVE_", "PYTHONPATH"))}


@serve.deployment(
    num_replicas=1,
    max_ongoing_requests=256,
    ray_actor_options={"num_cpus": 0.5, "runtime_env": {"env_vars": VARIABLES}},
)
class Peer:
    def __init__(self):
        self.function = launch.load_function()

    @serve.batch(max_batch_size=launch.BATCH, batch_wait_timeout_s=launch.WAIT_MS / 1e3)
    async def batched(self, items):
        return self.function(items)

    async def __call__(self, request: Request):
        item = await request.json()
        return await self.batched(item) if launch.BATCH > 1 else self.function([item])[0]


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=str(launch.SCRATCH), logging_level="warning")
    serve.start(http_options={"host": "127.0.0.1", "port": launch.PORT})
    serve.run(Peer.bind(), route_prefix="/")
    signal.sigwait({signal.SIGTERM})
    serve.shutdown()
    ray.shutdown()
