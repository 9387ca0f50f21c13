"""The memory that callers' bodies take of a gateway process: bounded until they are stored, and free while they are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import orjson
import psutil
import pytest
from grpc import aio

from penstock.extensions.oip.grpc.messages import SERVICE, message_class
from penstock.gateway.asgi.wire import MAX_BODIES_BYTES
from penstock.gateway.rpc.streams import AT_A_TIME
from penstock.loadtest.stack import free_port
from penstock.model_spec import VersionInfo
from tests.acceptance.gateway_process import GatewayClient, Hand
from tests.acceptance.many_clients import Connection
from tests.eventually import eventually, eventually_async
from tests.security.keyed import ALICE, BOB, keyed_gateway, make

MIB = 1 << 20
# All held inputs together are twice what bodies may take of a process.
HELD, FEW, AT_ONCE, BODY_BYTES = 25, 8, 4, 2 * MAX_BODIES_BYTES // 25
SLACK_BYTES = 64 * MIB
INFO = VersionInfo(accepts=("application/json", "application/octet-stream", "application/x-penstock-tensors"))
KEYS = (ALICE, BOB, make("carol", "submit", "read", owner="team-c"))
UNBOUNDED, GRPC_KEY = [("grpc.max_send_message_length", -1)], tuple(ALICE.header.items())
JSON, OCTETS = {"content-type": "application/json"}, {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def gateway(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    folder = tmp_path_factory.mktemp("bodies")
    with keyed_gateway(redis_url, folder, keys=KEYS, cold=True, grpc_port=free_port(), max_json_bytes=32 * MIB) as client:
        yield client


@contextmanager
def model(redis_url: str, gateway: GatewayClient, name: str) -> Iterator[Hand]:
    """A model of this test, whose jobs wait until the test ends them."""
    hand = Hand(redis_url, name)
    with closing(hand.store):
        hand.announce(INFO)
        eventually(lambda: gateway.get(f"/v1/models/{name}", headers=ALICE.header).status_code == 200)
        yield hand


def resident(gateway: GatewayClient) -> int:
    return int(psutil.Process(gateway.process.pid).memory_info().rss)


async def held_bytes(gateway: GatewayClient, hand: Hand, ask: Callable[[], Any], *, held: int = HELD) -> tuple[int, int]:
    """By how many bytes the gateway grew at most, and was larger in the end, while `held` requests waited for their answers.

    `AT_ONCE` requests are on their way at a time, which together have less than their owner's share.
    """
    before, most, asked = resident(gateway), 0, list[asyncio.Task[int]]()

    async def are_stored() -> bool:
        nonlocal most
        hand.announce(INFO)  # a gateway forgets a worker that is silent for long
        most = max(most, resident(gateway) - before)
        if ended := [task.result() for task in asked if task.done()]:
            pytest.fail(f"answered {ended} before its job ended, of {hand.store.stats(hand.model).depth} stored")
        return hand.store.stats(hand.model).depth == len(asked)

    while len(asked) < held:
        asked += [asyncio.create_task(ask()) for _ in range(min(AT_ONCE, held - len(asked)))]
        await eventually_async(are_stored, timeout_s=60.0)
    after = resident(gateway) - before
    for _ in range(held):
        hand.finish(await asyncio.to_thread(hand.take))
    print(f"{hand.model}: {most / MIB:.0f} MiB more at most, {after / MIB:.0f} MiB more while {held} requests were held")
    assert set(await asyncio.gather(*asked)) <= {200, 201}
    return most, after


async def status_of(gateway: GatewayClient, path: str, head: dict[str, str], body: bytes) -> int:
    connection = Connection(gateway.base_url.port or 0)
    try:
        return (await connection.ask("POST", path, head, body)).status
    finally:
        await connection.close()


def tensor_body() -> tuple[bytes, dict[str, str]]:
    """A request of the Open Inference Protocol with a binary tensor, and its headers."""
    tensor = {"name": "x", "datatype": "UINT8", "shape": [BODY_BYTES], "parameters": {"binary_data_size": BODY_BYTES}}
    head = orjson.dumps({"inputs": [tensor]})
    return head + b"x" * BODY_BYTES, OCTETS | {"inference-header-content-length": str(len(head))}


TEXT = orjson.dumps({"input": {"x": "x" * BODY_BYTES}})
DOORS = {
    "whole": ("/predictions/whole?deadline_s=110", b"x" * BODY_BYTES, OCTETS),
    "json": ("/predictions/json?deadline_s=110", TEXT, JSON),
    "waited": ("/v1/models/waited/jobs", b"x" * BODY_BYTES, OCTETS | {"prefer": "wait=30"}),
    "oip": ("/v2/models/oip/infer", *tensor_body()),
    "cog": ("/cog/cog/predictions", TEXT, JSON),
    "replicate": ("/replicate/v1/models/me/replicate/predictions", TEXT, JSON | {"prefer": "wait"}),
}


@pytest.mark.parametrize("name", DOORS)
async def test_a_body_leaves_memory_once_its_job_is_stored(redis_url: str, gateway: GatewayClient, name: str) -> None:
    """Regression: 25 held predictions of 30 MiB took a gateway from 82 to 847 MiB: each body lay there until the answer."""
    path, body, head = DOORS[name]
    ask = partial(status_of, gateway, path, ALICE.header | head, body)
    with model(redis_url, gateway, name) as hand:
        most, after = await held_bytes(gateway, hand, ask, held=HELD if name == "whole" else FEW)
    assert most <= MAX_BODIES_BYTES + SLACK_BYTES
    assert after <= SLACK_BYTES


async def test_a_refused_body_leaves_memory_with_its_answer(redis_url: str, gateway: GatewayClient) -> None:
    """Regression: an error that its own frame named kept all frames, and so each body that found no worker, for minutes."""
    with model(redis_url, gateway, "idle") as hand:
        hand.announce(INFO, state="loading")
        head, path, before = ALICE.header | OCTETS, "/predictions/idle", resident(gateway)
        served = partial(gateway.get, "/v1/models/idle", headers=ALICE.header)
        eventually(lambda: served().json()["ready_slots"] == 0)
        for _ in range(HELD):
            assert await status_of(gateway, path, head, b"x" * BODY_BYTES) == 503
        assert resident(gateway) - before <= SLACK_BYTES


async def test_linked_files_leave_memory_once_their_job_is_stored(redis_url: str, gateway: GatewayClient) -> None:
    """Regression: 20 requests of 112 bytes, each with a link to a file of 30 MiB and `Prefer: wait`, took 1,416 MiB."""
    sent = gateway.post("/replicate/v1/files", files={"content": ("a.bin", b"x" * BODY_BYTES)}, headers=ALICE.header)
    body = orjson.dumps({"version": "linked:1", "input": {"x": sent.json()["urls"]["get"].replace("127.0.0.1", "localhost")}})

    host = {"host": f"localhost:{gateway.base_url.port}", "prefer": "wait"}
    ask = partial(status_of, gateway, "/replicate/v1/predictions", ALICE.header | JSON | host, body)
    with model(redis_url, gateway, "linked") as hand:
        most, after = await held_bytes(gateway, hand, ask, held=FEW)
    assert most <= MAX_BODIES_BYTES + SLACK_BYTES
    assert after <= SLACK_BYTES


def tensor_message(name: str) -> bytes:
    asked = message_class("ModelInferRequest")(model_name=name)
    asked.inputs.add(name="x", datatype="UINT8", shape=[BODY_BYTES])
    asked.raw_input_contents.append(b"x" * BODY_BYTES)
    written: bytes = asked.SerializeToString()
    return written


async def test_a_message_leaves_memory_once_its_job_is_stored(redis_url: str, gateway: GatewayClient) -> None:
    """Regression: each call held its message until the answer."""
    message = tensor_message("unary")
    async with aio.insecure_channel(gateway.grpc_address, options=UNBOUNDED) as channel:

        async def ask() -> int:
            await channel.unary_unary(f"/{SERVICE}/ModelInfer")(message, metadata=GRPC_KEY, timeout=110.0)
            return 200

        with model(redis_url, gateway, "unary") as hand:
            most, after = await held_bytes(gateway, hand, ask)
    # Messages that are being read are bounded by themselves.
    assert most <= 2 * MAX_BODIES_BYTES + SLACK_BYTES
    assert after <= SLACK_BYTES


async def test_a_stream_reads_no_message_before_the_last_one_has_its_share(redis_url: str, gateway: GatewayClient) -> None:
    """Regression: a stream read eight messages ahead, which no limit of bodies counted, and held them until their answers."""
    message = tensor_message("stream")
    async with aio.insecure_channel(gateway.grpc_address, options=UNBOUNDED) as channel:
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(metadata=GRPC_KEY, timeout=110.0)
        writing, reading = asyncio.Lock(), asyncio.Lock()

        async def ask() -> int:
            async with writing:
                await stream.write(message)
            async with reading:
                answer = message_class("ModelStreamInferResponse").FromString(await stream.read())
            assert not answer.error_message
            return 200

        with model(redis_url, gateway, "stream") as hand:
            most, after = await held_bytes(gateway, hand, ask, held=AT_A_TIME)
        await stream.done_writing()
    assert most <= MAX_BODIES_BYTES + SLACK_BYTES
    assert after <= SLACK_BYTES


async def test_one_owner_s_large_bodies_refuse_none_of_another(redis_url: str, gateway: GatewayClient) -> None:
    port, large = gateway.base_url.port or 0, 16 * MIB
    head = ALICE.header | OCTETS | {"content-length": str(large + 1)}
    with model(redis_url, gateway, "shared") as hand, hand.serving():
        # Bodies that never end hold their bytes: the owner's half is full.
        unfinished = [Connection(port) for _ in range(MAX_BODIES_BYTES // 2 // large + 2)]
        tasks = [asyncio.create_task(one.ask("POST", "/predictions/shared", head, b"x" * large)) for one in unfinished]
        refused, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=60.0)
        assert {task.result().status for task in refused} == {503}
        mine, path = Connection(port), "/predictions/shared"
        for size in (10, MIB, large):
            assert (await mine.ask("POST", path, BOB.header | OCTETS, b"x" * size)).status == 200, size
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in (mine, *unfinished):
            await one.close()
        again = partial(gateway.post, path, content=b"x" * large, headers=ALICE.header | OCTETS)
        await asyncio.to_thread(eventually, lambda: again().status_code == 200)
