"""What a recorded call returns, with a stand-in for CUDA's streams and graphs that records and replays on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.handlers.runtimes.torch.graphs import GraphedCall

torch = pytest.importorskip("torch")


class Graph:
    """Replays by running the call again and writing into the memory of the first result, as CUDA does."""

    def __init__(self) -> None:
        self.replay: Callable[[], None] = lambda: None

    def pool(self) -> Graph:
        return self


class Cuda:
    """`pools` are those that each recording was given."""

    def __init__(self, call: Callable[[Sequence[Any]], Any]) -> None:
        self.call = call
        self.pools: list[Any] = []
        self._seen: tuple[Sequence[Any], Any] = ([], None)

    def library(self) -> Any:
        stream = SimpleNamespace(wait_stream=lambda _: None)
        cuda = SimpleNamespace(
            Stream=lambda: stream,
            current_stream=lambda: stream,
            stream=lambda _: nullcontext(),
            CUDAGraph=Graph,
            graph=self._recording,
        )
        return SimpleNamespace(cuda=cuda)

    def watched(self, tensors: Sequence[Any]) -> Any:
        result = self.call(tensors)
        self._seen = (tensors, result)
        return result

    @contextmanager
    def _recording(self, graph: Graph, *, pool: Any, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        self.pools.append(pool)
        yield
        inputs, result = self._seen

        def replay() -> None:
            result["logits"].copy_(self.call(inputs)["logits"])

        graph.replay = replay


def test_the_answer_of_one_batch_is_not_overwritten_by_the_next() -> None:
    cuda = Cuda(lambda tensors: {"logits": tensors[0] * 2})
    call = GraphedCall(cuda.library(), cuda.watched)
    first = call([torch.tensor([1.0, 2.0])])
    second = call([torch.tensor([5.0, 6.0])])
    assert first["logits"].tolist() == [2.0, 4.0]
    assert second["logits"].tolist() == [10.0, 12.0]


def test_inputs_lie_where_they_were_recorded_and_all_sizes_share_one_pool() -> None:
    cuda = Cuda(lambda tensors: {"logits": tensors[0] + 1})
    call = GraphedCall(cuda.library(), cuda.watched)
    assert call([torch.zeros(4)])["logits"].tolist() == [1.0] * 4
    assert call([torch.ones(2)])["logits"].tolist() == [2.0] * 2
    assert cuda.pools[0] is None
    assert isinstance(cuda.pools[1], Graph)
