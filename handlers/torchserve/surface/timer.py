"""`ts.handler_utils.timer.timed`: how long a stage of a handler takes, as a metric, if the archive's settings ask for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


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
    """Where times are recorded; None if nobody asked for them. A handler may run before it has a context."""
    context = getattr(handler, "context", None)
    settings = getattr(context, "model_yaml_config", None) or {}
    own = settings.get("handler")
    return context.metrics if context is not None and isinstance(own, dict) and own.get("profile") else None
