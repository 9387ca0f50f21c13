"""CUDA graphs: the kernels of one batch size recorded once and replayed as one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.handlers.runtimes.torch.runtime import named

# torch's recommendation: the first runs allocate, choose kernels and build caches, which is forbidden while recording.
_RUNS_BEFORE = 3


@dataclass(frozen=True, slots=True)
class _Recorded:
    graph: Any
    inputs: list[Any]
    result: dict[str, Any]


class GraphedCall:
    """Records `call` once per set of input shapes. A result is a copy, because the next replay overwrites the recorded one.

    Record the largest batch first: the graphs of all sizes share its pool, and smaller ones find room in what it took.
    """

    def __init__(self, torch: Any, call: Callable[[Sequence[Any]], Any]) -> None:
        self._torch = torch
        self._call = call
        self._recorded: dict[tuple[Any, ...], _Recorded] = {}

    def __call__(self, tensors: Sequence[Any]) -> Any:
        key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        recorded = self._recorded.get(key)
        if recorded is None:
            recorded = self._recorded[key] = self._record(tensors)
        for buffer, tensor in zip(recorded.inputs, tensors, strict=True):
            buffer.copy_(tensor)
        recorded.graph.replay()
        return {name: tensor.clone() for name, tensor in recorded.result.items()}

    def _record(self, tensors: Sequence[Any]) -> _Recorded:
        torch = self._torch
        inputs = [tensor.clone() for tensor in tensors]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_RUNS_BEFORE):
                self._call(inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Thread-local: the thread that uploads the next batch allocates memory meanwhile, which a global capture refuses.
        with torch.cuda.graph(graph, pool=self._pool(), capture_error_mode="thread_local"):
            result = named(self._call(inputs))
        return _Recorded(graph, inputs, result)

    def _pool(self) -> Any:
        """One pool for all sizes, because their graphs never run at the same time."""
        first = next(iter(self._recorded.values()), None)
        return first.graph.pool() if first else None
