"""How long the stages of a handler take: `ts.handler_utils.timer.timed`, and torch's profiler on request."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger(__name__)

_FOLDER = "pytorch_profiler"
# A trace has megabytes, and there is one per batch: a forgotten variable must not fill the disk.
MOST_TRACES = 100
_ROWS = 10


def timed(func: F) -> F:
    """Records `ts_handler_<name of the method>` in ms where model-config.yaml has `handler: {profile: true}`.

    A call that raises is not recorded.
    """

    @wraps(func)
    def timed_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        metrics = _metrics(self)
        if metrics is None:
            return func(self, *args, **kwargs)
        began = time.perf_counter()
        answer = func(self, *args, **kwargs)
        metrics.add_time(f"ts_handler_{func.__name__}", (time.perf_counter() - began) * 1000)
        return answer

    return cast("F", timed_call)


def _metrics(handler: Any) -> Any:
    """Where times are recorded; None if they are not wanted. A handler may run before it has a context."""
    context = getattr(handler, "context", None)
    settings = getattr(context, "model_yaml_config", None) or {}
    own = settings.get("handler")
    return context.metrics if context is not None and isinstance(own, dict) and own.get("profile") else None


def profiled(run: Callable[[], Any], arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    """What `run` returns, and the profile. `arguments` are those of `torch.profiler.profile`; without any, a trace is written.

    The traces are in the folder pytorch_profiler of the system's temporary folder, at most `MOST_TRACES` of them.
    """
    from torch.profiler import profile

    with profile(**(arguments or _usual_arguments())) as profiler:
        answers = run()
    log.info("%s", profiler.key_averages().table(row_limit=_ROWS))
    return answers, profiler


def _usual_arguments() -> dict[str, Any]:
    from torch.profiler import supported_activities, tensorboard_trace_handler

    given: dict[str, Any] = {"activities": [*supported_activities()], "record_shapes": True}
    folder = Path(tempfile.gettempdir(), _FOLDER)
    if folder.is_dir() and sum(1 for _ in folder.iterdir()) >= MOST_TRACES:
        log.warning("%s holds %d traces; no more are written until some are removed", folder, MOST_TRACES)
        return given
    log.info("Saving chrome trace to : %s", folder)
    return {**given, "on_trace_ready": tensorboard_trace_handler(str(folder))}
