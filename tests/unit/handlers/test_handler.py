from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import HandlerContractError, InvalidInput
from penstock.handlers.handler import Failure, broken_device, failure_of, fatal_device_error, out_of_memory


def test_a_failure_carries_class_and_message_of_the_error() -> None:
    assert failure_of(ValueError("no such row")) == Failure("ValueError: no such row", "handler_error")


def test_an_error_without_text_is_named_by_its_class() -> None:
    assert failure_of(KeyboardError()).message == "KeyboardError"


def test_errors_of_penstock_keep_their_own_code_and_words() -> None:
    assert failure_of(InvalidInput("too short")) == Failure("too short", "invalid_input")
    assert failure_of(HandlerContractError("2 for 3")).code == "handler_contract"


def test_a_dumped_tensor_does_not_become_the_message() -> None:
    assert len(failure_of(ValueError("x" * 100_000)).message) == 1_000


def test_a_message_that_cannot_be_written_does_not_take_the_child_down() -> None:
    # A lone surrogate in it ended the process while it sent the outcome: the job was given up as poison, without its message.
    failure = failure_of(ValueError("\ud800 in row 7"))
    assert failure.message == "ValueError: ? in row 7"
    assert Failure(ValueError("as it is")).message == "as it is"  # type: ignore[arg-type]


def test_an_error_that_cannot_tell_its_message_is_told_all_the_same() -> None:
    assert failure_of(Unspeakable()).message == "Unspeakable: (its message cannot be read: ZeroDivisionError)"


@pytest.mark.parametrize("code", ["", "Bad Image", "../x", "\n", "x" * 65, None, 7])
def test_a_code_that_clients_could_not_match_on_is_refused(code: Any) -> None:
    with pytest.raises(HandlerContractError, match="snake_case"):
        Failure("no image", code)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("std::bad_alloc"),
        type("OutOfMemoryError", (RuntimeError,), {})("tried to allocate"),
        type("RuntimeException", (Exception,), {"__module__": "onnxruntime.capi"})("Failed to allocate memory for buffer"),
    ],
)
def test_running_out_of_memory_is_recognised_in_all_its_forms(error: Exception) -> None:
    assert out_of_memory(error)
    assert failure_of(error).code == "oom"


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory, says the user")])
def test_other_errors_are_not_taken_for_a_lack_of_memory(error: Exception) -> None:
    assert not out_of_memory(error)


class KeyboardError(Exception):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        return str(1 / 0)


class AcceleratorError(RuntimeError):
    """As torch.AcceleratorError of 2.8 and later."""


@pytest.mark.parametrize(
    ("error", "fatal", "broken"),
    [
        (RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be ..."), True, False),
        (AcceleratorError("CUDA error: an illegal memory access was encountered"), True, False),
        (RuntimeError("CUDA error: unspecified launch failure"), True, False),
        (RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"), True, False),
        (RuntimeError("HIP error: an illegal memory access was encountered"), True, False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True, False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"), True, False),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True, True),
        (RuntimeError("cudaErrorECCUncorrectable"), True, True),
        (RuntimeError("CUDA error: no CUDA-capable device is detected"), True, True),
        (AcceleratorError("CUDA error: out of memory"), False, False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), False, False),
        (RuntimeError("CUDA error: invalid argument"), False, False),
        # Not the device's word: a model may talk of anything.
        (ValueError("CUDA error: device-side assert triggered"), False, False),
        (RuntimeError("illegal instruction in the recipe"), False, False),
    ],
)
def test_errors_after_which_every_call_fails_are_known_by_their_words(error: Exception, fatal: bool, broken: bool) -> None:
    assert (fatal_device_error(error), broken_device(error)) == (fatal, broken)
