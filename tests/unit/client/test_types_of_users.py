"""What a type checker tells who writes and calls models: `make check` reads this file as it would read theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, assert_type

import penstock
from penstock import (
    AsyncClient,
    AsyncJobHandle,
    Client,
    Context,
    Failure,
    Handler,
    JobHandle,
    Request,
    RunHandle,
    RunOptions,
)
from penstock.errors import JobFailed


@dataclass
class Row:
    x: float


@penstock.model
def double(x: float) -> float:
    return 2 * x


@penstock.model(batch=True, max_batch_size=4, cost=len)
def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


class Scale(Handler):
    max_batch_size = 16

    def initialize(self, context: Context) -> None:
        self.factor = float(context.options.get("factor", 1))

    def preprocess(self, inputs: list[Request[Row]]) -> list[float]:
        return [request.input.x for request in inputs]

    def inference(self, batch: list[float]) -> list[float | Failure]:
        return [self.factor * x if x else Failure("zero") for x in batch]


def called(client: Client) -> None:
    """Only a type checker reads it."""
    job = client.submit("double", 4, tags=["nightly"])
    assert_type(job, JobHandle)
    assert_type(client.map("double", [1]), Iterator[Any])
    assert_type(client.run("double", [1, 2], options=RunOptions(tags=("nightly",))), RunHandle)
    client.submit("double", 4, deadline=3)  # type: ignore[call-arg]
    try:
        job.result(timeout_s=3)
    except JobFailed as failed:
        assert_type(failed.message, str)


async def awaited(client: AsyncClient) -> None:
    """Only a type checker reads it."""
    assert_type(await client.submit("double", 4), AsyncJobHandle)
    assert_type(client.map("double", [1]), AsyncIterator[Any])


def test_models_keep_the_types_of_the_code_that_they_are() -> None:
    assert_type(double(3.0), float)
    assert_type(lengths(["a"]), list[int])
    # Wrong inputs are errors before anything runs.
    wrong: Callable[[], object] = lambda: double("3")  # type: ignore[arg-type]  # noqa: E731
    assert (double(3.0), lengths(["a"]), wrong()) == (6.0, [1], "33")


def test_a_class_is_made_and_tried_as_any_other() -> None:
    scale = Scale()
    scale.initialize(Context("scale", options={"factor": 3}))
    assert scale.inference(scale.preprocess([Request(Row(2.0)), Request(Row(0.0))])) == [6.0, Failure("zero")]
