"""The environment of model code: variables that every program needs, and its model's own. Secrets stay out of logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.errors import ConfigError
from penstock.model_spec import Variable
from penstock.words import MASK
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import BatchDone, DeviceLost, Failed, FromChild, LoadFailed, MetricSamples, ShardDone

# What model code may see of the environment. Our own variables stay out: a store's URL may contain a password.
_SYSTEM = ("PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD")
_COMPILERS = ("CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
_TORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_HOME", "TORCH_LOGS", "CUBLAS_WORKSPACE_CONFIG")
_HUGGING_FACE = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE")
_ALLOWED = frozenset({*_SYSTEM, *_COMPILERS, *_TORCH, *_HUGGING_FACE})
_ALLOWED_PREFIXES = ("PYTHON", "LC_", "CUDA_", "NVIDIA_", "XDG_", "TORCHINDUCTOR_", "TRITON_")
# Some names below these prefixes hold secrets as well: NVIDIA_API_KEY, TORCHINDUCTOR_REDIS_URL.
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|REDIS|URL")
# ONNX Runtime's wheels report to their maker every few seconds unless this is set before the import; others may do so too.
_QUIET = {"ORT_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
# A shorter value, such as a port, would be masked wherever its few characters stand.
_MASKED_CHARS = 6


def child_environment(environment: Mapping[str, str], pin: Pin, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """All variables of a child. `variables` are those of its model; they win over what the worker inherited."""
    kept = {name: value for name, value in environment.items() if _allowed(name)}
    ours = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **pin.environment()}
    return {**kept, **_QUIET, **(variables or {}), **ours}


def _allowed(name: str) -> bool:
    return name in _ALLOWED or (name.startswith(_ALLOWED_PREFIXES) and not _SECRET.search(name))


def read_variables(model: str, table: str, variables: Mapping[str, Variable], environment: Mapping[str, str]) -> dict[str, str]:
    """The value of each variable, read now; raises `ConfigError` that names the setting whose source is missing."""
    return {name: _value(f"models.{model}.{table}.{name}", one, environment) for name, one in variables.items()}


def _value(setting: str, variable: Variable, environment: Mapping[str, str]) -> str:
    if variable.text is not None:
        return variable.text
    if not variable.file:
        value = environment.get(variable.of)
        if value is None:
            raise ConfigError(f"{setting}: the worker's environment has no variable {variable.of}; set it and start the worker")
        return value
    try:
        return Path(variable.file).read_text("utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(f"{setting}: the file {variable.file} cannot be read: {why}") from None


class Mask:
    """Hides the values of secrets in what a child writes and reports. Values of fewer than six characters are not hidden."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # The longest first, because one value may be part of another.
        self._values = sorted({value for value in secrets if len(value) >= _MASKED_CHARS}, key=len, reverse=True)

    def text(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, MASK)
        return text

    def frame(self, frame: FromChild) -> FromChild:
        """The frame without secrets in its messages. Outputs stay as they are: they are the caller's."""
        if isinstance(frame, (LoadFailed, DeviceLost)):
            frame.message = self.text(frame.message)
        elif isinstance(frame, (BatchDone, ShardDone)):
            done = frame.done if isinstance(frame, ShardDone) else frame
            for outcome in done.outcomes:
                if isinstance(outcome, Failed):
                    outcome.message, outcome.traceback = self.text(outcome.message), self.text(outcome.traceback)
        elif isinstance(frame, MetricSamples):
            for sample in frame.samples:
                sample.help = self.text(sample.help)
                sample.label_values = tuple(map(self.text, sample.label_values))
        return frame
