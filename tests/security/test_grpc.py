"""The gRPC port under attack, with TLS and keys as an installation beyond loopback has it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from benchmarks.experiments.doors import frames
from penstock.extensions.oip.grpc.messages import message_class
from penstock.extensions.oip.grpc.service import UNSERVED
from penstock.gateway.rpc.pool import MessagePool
from penstock.loadtest.stack import free_port
from tests.acceptance.gateway_process import Hand
from tests.acceptance.grpc_call import SERVICE, call
from tests.certificates import Authority
from tests.eventually import eventually
from tests.security.keyed import ALICE, BOB, BOSS, LIMITED, READER, TestKey, keyed_gateway

STATUSES = MessagePool("penstock.gateway.rpc", "status.binpb")
MIB = 1024 * 1024
INFER = f"/{SERVICE}/ModelInfer"


@dataclass(frozen=True)
class GrpcPort:
    """The attacked port, and a channel to it."""

    port: int
    certificate: bytes
    channel: grpc.Channel
    redis_url: str


@pytest.fixture(scope="module")
def attacked(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcPort]:
    folder, port = tmp_path_factory.mktemp("tls"), free_port()
    authority = Authority(folder / "ca")
    file = authority.issue("localhost")
    settings: dict[str, Any] = {
        "grpc_port": port,
        "grpc_certificate": file,
        "grpc_key": file,
        "max_raw_bytes": MIB,
        "body_timeout_s": 1.0,
    }
    with keyed_gateway(redis_url, folder / "g", max_streams=8, max_predictions=40, **settings):
        trusted = authority.file.read_bytes()
        options = [("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 10 * MIB)]
        credentials = grpc.ssl_channel_credentials(trusted)
        with grpc.secure_channel(f"localhost:{port}", credentials, options=options) as channel:
            Hand(redis_url).announce()
            eventually(lambda: infer(channel, ALICE) == grpc.StatusCode.DEADLINE_EXCEEDED)
            yield GrpcPort(port, trusted, channel, redis_url)


def square(x: float = 4.0, **change: Any) -> bytes:
    given = {"name": "x", "datatype": "FP64", "shape": [1], "contents": {"fp64_contents": [x]}}
    message: bytes = message_class("ModelInferRequest")(model_name="square", inputs=[given], **change).SerializeToString()
    return message


def infer(channel: grpc.Channel, key: TestKey | None, message: bytes | None = None, **more: Any) -> grpc.StatusCode:
    """How a call ends. Nobody serves the model, so one that gets through has no answer before its deadline."""
    try:
        answer(channel, key, "ModelInfer", square() if message is None else message, **{"timeout": 0.3, **more})
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def answer(channel: grpc.Channel, key: TestKey | None, method: str, message: bytes = b"", **more: Any) -> bytes:
    metadata = tuple(key.header.items()) if key else ()
    return call(channel, method, message, metadata=metadata + more.pop("metadata", ()), **more)


def refusal(channel: grpc.Channel, key: TestKey | None, method: str, message: bytes = b"", **more: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        answer(channel, key, method, message, **more)
    return refused.value


METHODS = (
    "ServerMetadata",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelInfer",
    "ModelStreamInfer",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    next(iter(UNSERVED)),
)


def test_a_stranger_learns_nothing_of_any_method(attacked: GrpcPort) -> None:
    # One call each: an address that guesses too often is told something else.
    refused = [refusal(attacked.channel, None, method, square()) for method in METHODS]
    assert {(one.code(), one.details()) for one in refused} == {(grpc.StatusCode.UNAUTHENTICATED, refused[0].details())}
    assert "square" not in refused[0].details()


def test_probes_need_no_key_and_tell_no_more_than_that(attacked: GrpcPort) -> None:
    assert answer(attacked.channel, None, "ServerLive") == b"\x08\x01"
    assert answer(attacked.channel, None, "ServerReady") in (b"", b"\x08\x01")
    assert call(attacked.channel, "Check", service="grpc.health.v1.Health")


@pytest.mark.parametrize(
    ("key", "method", "allowed"),
    [
        (READER, "ModelInfer", False),
        (READER, "ModelMetadata", True),
        (ALICE, "RepositoryIndex", False),
        (ALICE, "ModelStatistics", False),
        (ALICE, "RepositoryModelLoad", False),
        (BOSS, "RepositoryIndex", True),
        (BOSS, "ModelInfer", False),
    ],
)
def test_a_role_may_do_what_it_may_over_http(attacked: GrpcPort, key: TestKey, method: str, allowed: bool) -> None:
    message = message_class("ModelMetadataRequest")(name="square").SerializeToString() if method == "ModelMetadata" else b""
    if allowed:
        assert answer(attacked.channel, key, method, message)
    else:
        refused = refusal(attacked.channel, key, method, message)
        assert (refused.code(), "role" in refused.details()) == (grpc.StatusCode.PERMISSION_DENIED, True)


def retry_s(refused: grpc.RpcError) -> int:
    """Seconds, as the refusal's details say for programs."""
    metadata = dict(refused.trailing_metadata())
    status = STATUSES.message_class("google.rpc.Status").FromString(metadata["grpc-status-details-bin"])
    (found,) = [one for one in status.details if one.type_url.endswith("google.rpc.RetryInfo")]
    seconds: int = STATUSES.message_class("google.rpc.RetryInfo").FromString(found.value).retry_delay.seconds
    assert metadata["grpc-retry-pushback-ms"] == str(seconds * 1_000)
    return seconds


def test_a_rate_is_kept_and_says_when_to_come_back(attacked: GrpcPort) -> None:
    for _ in range(3):
        answer(attacked.channel, LIMITED, "ServerMetadata")
    refused = refusal(attacked.channel, LIMITED, "ServerMetadata")
    assert (refused.code(), retry_s(refused) >= 1) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
    assert answer(attacked.channel, ALICE, "ServerMetadata")


@pytest.mark.parametrize(
    "metadata",
    [
        tuple((f"x-{number}", "a") for number in range(150)),
        (("x-long", "a" * 20_000),),
        (("x-long", "a" * 100_000),),
        tuple((f"x-{number}", "a" * 200) for number in range(3_000)),
        (("traceparent-bin", b"\xff" * 30_000),),
    ],
)
def test_a_flood_of_metadata_ends_the_call_and_no_other(attacked: GrpcPort, metadata: Any) -> None:
    refused = refusal(attacked.channel, ALICE, "ServerMetadata", metadata=metadata)
    assert refused.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
    assert answer(attacked.channel, BOB, "ServerMetadata")


def test_messages_beyond_the_limit_are_refused_also_when_they_are_compressed(attacked: GrpcPort) -> None:
    assert infer(attacked.channel, ALICE, bytes(2 * MIB), timeout=10.0) is grpc.StatusCode.RESOURCE_EXHAUSTED
    bomb = bytes(64 * MIB)
    assert len(gzip.compress(bomb)) < MIB
    compressed = infer(attacked.channel, ALICE, bomb, compression=grpc.Compression.Gzip, timeout=10.0)
    assert compressed is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [1 << 62], "raw": b"12345678"},
        {"shape": [1 << 31, 1 << 31, 4], "raw": b"12345678"},
        {"shape": [1] * 100_000, "raw": b"12345678"},
        {"shape": [-8], "raw": b"12345678"},
        {"shape": [2], "raw": b"12345678"},
        {"shape": [1_000_000_000, 0], "raw": b""},
        {"datatype": "BYTES", "shape": [1], "raw": b"\xff\xff\xff\x7fabc"},
        {"datatype": "BYTES", "shape": [200_000], "raw": bytes(800_000)},
        {"datatype": "BYTES", "shape": [1 << 40], "raw": bytes(8)},
    ],
)
def test_a_shape_that_lies_about_its_bytes_is_refused(attacked: GrpcPort, change: dict[str, Any]) -> None:
    given = {"name": "x", "datatype": change.get("datatype", "FP64"), "shape": change["shape"]}
    message = message_class("ModelInferRequest")(model_name="square", inputs=[given], raw_input_contents=[change["raw"]])
    refused = refusal(attacked.channel, ALICE, "ModelInfer", message.SerializeToString())
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(refused.details()) < 1_000


def test_streams_are_shared_out(attacked: GrpcPort) -> None:
    method = attacked.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    held = [method(_silence(), metadata=tuple(ALICE.header.items())) for _ in range(2)]
    eventually(lambda: _code(method(_silence(), metadata=tuple(ALICE.header.items()))) is grpc.StatusCode.RESOURCE_EXHAUSTED)
    other = method(iter((square(),)), metadata=tuple(BOB.header.items()), timeout=0.5)
    assert _code(other) is not grpc.StatusCode.RESOURCE_EXHAUSTED
    for stream in held:
        stream.cancel()


def _silence() -> Iterator[bytes]:
    time.sleep(30.0)
    yield b""


def _code(stream: Any) -> grpc.StatusCode:
    """How a stream ends, or OK if it has not for some time."""
    with contextlib.suppress(grpc.RpcError):
        next(stream)
    code: grpc.StatusCode = stream.code()
    return code


class RawCall:
    """One connection with calls whose messages never end."""

    def __init__(self, port: int, certificate: bytes) -> None:
        self._port = port
        self._trust = ssl.create_default_context(cadata=certificate.decode())
        self._trust.set_alpn_protocols(["h2"])
        self._streams = 1
        self.got = b""

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._trust, server_hostname="localhost"
        )
        self._writer.write(frames.opening())

    def begin(self, key: TestKey, *, size: int = MIB, sent: bytes = b"half") -> None:
        head = frames.call_head(INFER, scheme="https", metadata=tuple(key.header.items()))
        data = b"\0" + size.to_bytes(4, "big") + sent
        self._writer.write(frames.frame(frames.HEADERS, self._streams, head, flags=frames.END_HEADERS))
        self._writer.write(frames.frame(frames.DATA, self._streams, data))
        self._streams += 2

    async def ended(self) -> int:
        """How many calls the server has ended by now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                self.got += await self._reader.read(1 << 16)
        found, _ = frames.frames_in(self.got)
        return sum(one.kind == frames.HEADERS and one.flags & frames.END_STREAM != 0 for one in found)

    async def close(self) -> None:
        await hang_up(self._writer)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    # Closed in order, TLS would wait half a minute for the server's goodbye.
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_messages_that_never_end_are_given_up_and_block_no_other_owner(attacked: GrpcPort) -> None:
    raw = RawCall(attacked.port, attacked.certificate)
    await raw.open()
    for _ in range(10):
        raw.begin(ALICE)
    # Half of the places to read a message are left to the others.
    assert await asyncio.to_thread(infer, attacked.channel, BOB) is grpc.StatusCode.DEADLINE_EXCEEDED
    ended, until = 0, time.monotonic() + 30.0
    while ended < 10 and time.monotonic() < until:
        ended = await raw.ended()
    await raw.close()
    assert ended == 10
    Hand(attacked.redis_url).announce()
    assert await asyncio.to_thread(infer, attacked.channel, ALICE) is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_what_is_no_http2_is_hung_up_on(attacked: GrpcPort) -> None:
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64, frames.PREFACE + b"\xff" * 4_096):
        reader, writer = await asyncio.open_connection("127.0.0.1", attacked.port)
        writer.write(garbage)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(15.0):
                while await reader.read(1 << 16):
                    pass
        await hang_up(writer)
    assert await asyncio.to_thread(answer, attacked.channel, ALICE, "ServerMetadata")
