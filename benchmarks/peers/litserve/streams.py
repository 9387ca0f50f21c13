"""LitServe that streams, for `benchmarks.experiments.streams`: `python streams.py PORT`, with the common folder on the path."""

from __future__ import annotations

import sys

import litserve
import steps


class Api(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request

    def batch(self, inputs):
        return inputs

    def predict(self, inputs):
        yield from steps.tell(inputs)

    def unbatch(self, output):
        yield from output

    def encode_response(self, output):
        for tokens in output:
            yield [token + "\n" for token in tokens]


if __name__ == "__main__":
    api = Api(max_batch_size=int(sys.argv[2]), batch_timeout=0.01, stream=True)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60, fast_queue=True)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
