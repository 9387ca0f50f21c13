"""The start and the stop of a gateway that serves gRPC."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc")
import grpc

from penstock.loadtest.stack import free_port
from tests.acceptance.gateway_process import Hand, gateway_process
from tests.acceptance.grpc_call import call
from tests.eventually import eventually
from tests.extensions.oip.acceptance.test_open_inference_grpc import bad_message


def test_a_gateway_that_stops_answers_what_is_under_way(redis_url: str, tmp_path: Path) -> None:
    port, hand = free_port(), Hand(redis_url, "held")
    hand.announce()
    with gateway_process(redis_url, tmp_path, grpc_port=port) as client, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        message = bad_message({"model": "held"})
        under_way = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(message, timeout=30.0)
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        told: queue.Queue[bytes | None] = queue.Queue()
        answers = stream(iter(told.get, None), timeout=30.0)
        job = hand.take()
        client.process.send_signal(signal.SIGTERM)
        eventually(lambda: call(channel, "ServerReady") == b"")
        hand.finish(job)
        assert b'{"y":16}' in under_way.result(timeout=30.0)
        # An open stream is told to come back; its client has another gateway.
        with pytest.raises(grpc.RpcError) as ended:
            next(answers)
        assert (ended.value.code(), "stops" in ended.value.details()) == (grpc.StatusCode.UNAVAILABLE, True)
        told.put(None)
        assert client.process.wait(timeout=30.0) == 0


def test_a_port_that_is_taken_keeps_the_gateway_from_starting(redis_url: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        env = {
            **os.environ,
            "PENSTOCK_REDIS_URL": redis_url,
            "PENSTOCK_STORE__STATE_DIR": str(tmp_path),
            "PENSTOCK_GATEWAY__PORT": str(free_port()),
            "PENSTOCK_GATEWAY__GRPC_PORT": str(taken.getsockname()[1]),
        }
        command = [sys.executable, "-m", "penstock.gateway"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "gateway.grpc_port" in done.stdout + done.stderr) == (2, True), done.stdout + done.stderr
