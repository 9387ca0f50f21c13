from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.handlers.runtimes.torch.library import set_up, torch_library


def test_ci_runs_the_tests_that_need_torch() -> None:
    """Tests that need torch are skipped without it, so a whole runtime could silently go untested."""
    if not os.environ.get("CI"):
        pytest.skip("only CI must have torch")
    torch_library()


def test_the_threads_are_those_of_the_child() -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        set_up(torch, torch.device("cpu"), threads=1, precision="fp32")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torch on a machine whose GPU seems to have tensor cores; the fixture restores the settings of its arithmetic."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    before = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with warnings.catch_warnings():
        yield torch
    torch.set_num_threads(before[0])
    torch.set_float32_matmul_precision(before[1])
    torch.backends.cudnn.allow_tf32 = before[2]


def test_the_compiler_does_not_advise_the_tf32_that_the_precision_has_ruled_out(hopper: Any) -> None:
    """Regression: the compiler warned at every compilation for a GPU; where warnings are errors, no compiled model loaded."""
    advise = pytest.importorskip("torch._inductor.compile_fx")._warn_tf32_disabled.__wrapped__
    hopper.set_float32_matmul_precision("highest")
    with pytest.raises(UserWarning, match="available but not enabled"):
        advise()
    set_up(hopper, hopper.device("cuda"), threads=1, precision="fp32")
    advise()
    with pytest.raises(UserWarning, match="of something else"):
        warnings.warn("TensorFloat32 tensor cores warn of something else", UserWarning, stacklevel=1)


def test_tf32_is_on_only_where_the_precision_asks_for_it(hopper: Any) -> None:
    for precision, allowed in (("tf32", True), ("fp32", False), ("bf16", False)):
        set_up(hopper, hopper.device("cuda"), threads=1, precision=precision)
        assert (hopper.backends.cuda.matmul.allow_tf32, hopper.backends.cudnn.allow_tf32) == (allowed, allowed)
