"""What a handler of an archive may raise or return by mistake, and what becomes of it."""

from __future__ import annotations

from penstock.errors import HandlerContractError, HandlerLoadError
from penstock.handlers.contract import Failure
from penstock.outputs.response_head import PREDICTION_EXCEPTION, prediction_message

# Codes of a job whose handler returned something that cannot be sent.
BAD_TYPE = "bad_output_type"
BAD_LENGTH = "bad_output_length"
BAD_VALUE = "bad_output_value"
# From the errors of torch and of CUDA's libraries where there is no GPU.
_NO_GPU = ("nvidia driver", "not compiled with cuda", "no cuda gpus", "no cuda-capable device", "cuda driver", "libcuda.so")


class PredictionException(Exception):
    """Raised by a handler: the caller gets this message with this HTTP status."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


class BadHandlerOutput(HandlerContractError):
    """`handle` returned something that cannot be sent as a response. The code says what was wrong."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        # Three codes, because TorchServe's clients get three messages.
        self.kind = code  # type: ignore[misc]


def prediction_failure(error: PredictionException) -> Failure:
    """The failure of the item for which this was raised."""
    try:
        status = int(error.error_code)
    except (TypeError, ValueError):
        status = 500
    kinds = ("PredictionException",)
    return Failure(prediction_message(str(error.message), status), PREDICTION_EXCEPTION, kinds=kinds)


def needs_gpu(error: BaseException | None) -> bool:
    """Whether code failed because it uses CUDA where there is none."""
    return isinstance(error, Exception) and any(words in str(error).lower() for words in _NO_GPU)


def no_gpu(where: str, error: BaseException) -> HandlerLoadError:
    return HandlerLoadError(
        f"{where} uses CUDA, and its process has no GPU ({type(error).__name__}: {str(error).splitlines()[0][:200]}). Set "
        'device = "cuda" in the model\'s table where there is a GPU, or let the handler choose its device by '
        'context.system_properties["gpu_id"], which is None on a CPU'
    )
