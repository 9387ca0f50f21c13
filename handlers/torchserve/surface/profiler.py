"""torch's profiler around the stages of a handler, for the environment variable `ENABLE_TORCH_PROFILER`."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_FOLDER = "pytorch_profiler"
# A trace has megabytes, and there is one per batch: a forgotten variable must not fill the disk.
MOST_TRACES = 100
_ROWS = 10


def profiled(run: Callable[[], Any], arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    """What `run` returns, and the profile. `arguments` are those of `torch.profiler.profile`; without any, a trace is written.

    The traces are in the folder pytorch_profiler of the system's temporary folder, at most `MOST_TRACES` of them.
    """
    from torch.profiler import profile

    with profile(**(arguments or _usual_arguments())) as found:
        answers = run()
    log.info("%s", found.key_averages().table(row_limit=_ROWS))
    return answers, found


def _usual_arguments() -> dict[str, Any]:
    from torch.profiler import supported_activities, tensorboard_trace_handler

    given: dict[str, Any] = {"activities": [*supported_activities()], "record_shapes": True}
    folder = Path(tempfile.gettempdir(), _FOLDER)
    if folder.is_dir() and sum(1 for _ in folder.iterdir()) >= MOST_TRACES:
        log.warning("%s holds %d traces; no more are written until some are removed", folder, MOST_TRACES)
        return given
    log.info("Saving chrome trace to : %s", folder)
    return {**given, "on_trace_ready": tensorboard_trace_handler(str(folder))}
