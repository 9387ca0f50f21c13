"""LitServe with one worker; a size above 1 switches its batching on. It uses `fast_queue` (ZeroMQ), which is faster."""

from __future__ import annotations

import launch
import litserve


class Api(litserve.LitAPI):
    def setup(self, device):
        self.function = launch.load_function()

    def decode_request(self, request):
        return request

    def predict(self, inputs):
        return self.function(inputs) if launch.BATCH > 1 else self.function([inputs])[0]

    def encode_response(self, output):
        return output


if __name__ == "__main__":
    api = Api(max_batch_size=launch.BATCH, batch_timeout=launch.WAIT_MS / 1e3)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60, fast_queue=True)
    server.run(host="127.0.0.1", port=launch.PORT, log_level="warning", generate_client_file=False)
