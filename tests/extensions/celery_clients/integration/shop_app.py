"""A user's own Celery app, whose worker runs beside ours, for `celery -A shop_app worker`. It knows nothing of penstock."""

from __future__ import annotations

from typing import Any

from celery import Celery

app = Celery("shop")
app.conf.task_routes = {"penstock.*": {"queue": "penstock"}}
# The tests ask our worker for answers to remote commands, and not this one.
app.conf.worker_enable_remote_control = False


@app.task(name="shop.double")  # type: ignore[untyped-decorator]
def double(result: Any, key: str = "echo") -> dict[str, Any]:
    """Return an input for a model that doubles what came."""
    return {key: result * 2}


@app.task(name="shop.size")  # type: ignore[untyped-decorator]
def size(result: Any) -> int:
    return len(result)


@app.task(name="shop.failed")  # type: ignore[untyped-decorator]
def failed(task_id: str) -> str:
    return task_id
