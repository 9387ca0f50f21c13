"""Memory that runs out under torch: known as such, and given back before the smaller batch runs. No test needs a GPU."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from penstock.handlers.runtimes.batches import BatchSizes
from penstock.handlers.runtimes.torch.files import telling_memory
from penstock.workers.child.calls.run import call_stage

torch = pytest.importorskip("torch")
from penstock.handlers.runtimes.torch.opener import first_sizes  # noqa: E402

AOT_ERROR = "run_func_( container_handle_, ...) API call failed at model_container_runner.cpp, line 145"


@pytest.mark.parametrize(("ooms_of_the_call", "raised"), [(1, MemoryError), (0, RuntimeError)])
def test_a_package_that_fails_ran_out_of_memory_only_if_the_allocator_says_so(
    ooms_of_the_call: int, raised: type[Exception]
) -> None:
    """AOTInductor raises the same error for a wrong dtype: such a batch was halved down to its items, and the cap forgotten."""
    ooms = [3]

    def call(_: Any) -> Any:
        ooms[0] += ooms_of_the_call
        raise RuntimeError(AOT_ERROR)

    with pytest.raises(raised, match="API call failed") as found:
        telling_memory(call, lambda: ooms[0])([])
    assert type(found.value) is raised
    assert found.value.__context__ is None, "nothing holds the frames of the call, and with them the batch"


def test_a_package_that_answers_is_left_alone() -> None:
    assert telling_memory(lambda tensors: tensors, lambda: 0)([1]) == [1]


def test_what_a_batch_held_that_ran_out_of_memory_is_gone_when_its_halves_run() -> None:
    """A traceback holds the frames of the call, and these hold its tensors: the halves then ran out of memory as well."""
    held: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def stage(values: list[int]) -> list[int]:
        alive.append(sum(ref() is not None for ref in held))
        activations = torch.zeros(1_000)
        held.append(weakref.ref(activations))
        if len(values) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return values

    gc.disable()
    try:
        outputs, largest_ok = call_stage(stage, "inference", [1, 2, 3, 4])
    finally:
        gc.enable()
    assert (outputs, largest_ok) == ([1, 2, 3, 4], 1)
    assert alive == [0] * 7


@pytest.mark.parametrize(
    ("graphs", "buckets", "sizes"), [(True, (1, 4, 8), [8, 1]), (False, (1, 4, 8), [1]), (True, (), [1]), (True, (4,), [4])]
)
def test_the_largest_graph_is_recorded_first(graphs: bool, buckets: tuple[int, ...], sizes: list[int]) -> None:
    assert first_sizes(BatchSizes(1, 8).padded_to(buckets), graphs=graphs) == sizes
