"""KServe's documented calls against a running gateway: `python kserve_client.py HTTP_PORT GRPC_PORT`.

It runs in an environment that has the unmodified `kserve`, whose pins (psutil below 6) do not fit beside ours.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

FIRST = np.arange(16, dtype=np.int32)
ONES = np.ones(16, dtype=np.int32)


def request(model: str, *, numbers: bool = False) -> InferRequest:
    inputs = []
    for name, array in (("INPUT0", FIRST), ("INPUT1", ONES)):
        given = InferInput(name, list(array.shape), "INT32", data=array.tolist() if numbers else None)
        if not numbers:
            given.set_data_from_numpy(array, binary_data=True)
        inputs.append(given)
    return InferRequest(model_name=model, infer_inputs=inputs, request_id="7")


async def refused_with(call: Coroutine[Any, Any, Any], kind: type[Exception]) -> Any:
    """The status of a call that must fail."""
    try:
        await call
    except kind as error:
        found: Any = error
        return found.response.status_code if isinstance(error, httpx.HTTPStatusError) else found.code()
    return None


async def over_rest(base: str) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    assert await client.is_server_live(base)
    assert await client.is_server_ready(base)
    assert await client.is_model_ready(base, "simple")
    for numbers in (False, True):
        found = await client.infer(base, request("simple", numbers=numbers), model_name="simple")
        assert (found.get_output_by_name("OUTPUT0").as_numpy() == FIRST + ONES).all()
        assert found.id == "7"
    assert await refused_with(client.infer(base, request("nobody"), model_name="nobody"), httpx.HTTPStatusError) == 404
    assert await refused_with(client.infer(base, request("square"), model_name="square"), httpx.HTTPStatusError) == 422
    await client.close()


async def over_grpc(address: str) -> None:
    async with InferenceGRPCClient(address) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("simple")
        for numbers in (False, True):
            found = await client.infer(request("simple", numbers=numbers))
            assert (found.get_output_by_name("OUTPUT0").as_numpy() == FIRST + ONES).all()
            assert found.id == "7"
        for model, code in (("nobody", grpc.StatusCode.NOT_FOUND), ("square", grpc.StatusCode.INVALID_ARGUMENT)):
            assert await refused_with(client.infer(request(model)), grpc.RpcError) is code


if __name__ == "__main__":
    asyncio.run(over_rest(f"http://127.0.0.1:{sys.argv[1]}"))
    asyncio.run(over_grpc(f"127.0.0.1:{sys.argv[2]}"))
    print("passed")
