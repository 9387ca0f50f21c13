from __future__ import annotations

import os

import pytest

from penstock.handlers.runtimes.torch.library import set_up, torch_library


def test_ci_runs_the_tests_that_need_torch() -> None:
    """They skip where it is absent, and a whole runtime would go untested in silence."""
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
