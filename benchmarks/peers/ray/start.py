"""Ray Serve with one replica behind HAProxy, and Ray's own switch for throughput."""

from __future__ import annotations

import os
import signal

import launch

# The first two are what its documentation recommends for throughput. The time limit of 5 s ends starts on a busy machine, and
# files of HAProxy would stay in /tmp.
os.environ |= {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(launch.SCRATCH / "haproxy.cfg"),
    "RAY_SERVE_HAPROXY_SOCKET_PATH": str(launch.SCRATCH / "admin.sock"),
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(launch.SCRATCH / "metrics.sock"),
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(launch.SCRATCH),
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(launch.SCRATCH / "server-state"),
    "RAY_USAGE_STATS_ENABLED": "0",
}

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
        item = await (request.body() if launch.RAW else request.json())
        return await self.batched(item) if launch.BATCH > 1 else self.function([item])[0]


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=str(launch.SCRATCH), logging_level="warning")
    serve.start(http_options={"host": "127.0.0.1", "port": launch.PORT})
    serve.run(Peer.bind(), route_prefix="/")
    signal.sigwait({signal.SIGTERM})
    serve.shutdown()
    ray.shutdown()
