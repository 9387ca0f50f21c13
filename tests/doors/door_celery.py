"""Stock Celery clients: a task that a client without penstock sends becomes a job in the worker that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.broker.celery_connection import broker_url
from tests.doors.door import Call, Door, Refusal, Reply, Unsupported
from tests.doors.door_jobs import STORED, WAITS
from tests.doors.stack import Site
from tests.stock_celery import stock_celery

_STORE = "who may write to the store may send tasks; the store's users are the keys"
_QUEUED = "a task lies in the store before penstock reads it"
_HTTP = "a task is no request of HTTP"


class CeleryDoor(Door):
    name: ClassVar[str] = "celery"
    title: ClassVar[str] = "stock Celery client"
    page: ClassVar[str] = "celery.md"
    route: ClassVar[str] = "penstock.<model>"
    stores_at_once: ClassVar[bool] = False
    refusals: ClassVar[Mapping[str, Refusal]] = {
        "unknown_model": ("BadRequest", "invalid_message"),
        "unknown_version": ("BadRequest", "invalid_message"),
        "unreadable": ("BadRequest", "invalid_message"),
        "empty": ("BadRequest", "invalid_message"),
        "misfit": ("InvalidInput", "invalid_input"),
        "expired": ("TaskRevokedError", "expired"),
        "failed:handler_error": ("HandlerError", "handler_error"),
        "failed:my_own": ("HandlerError", "my_own"),
        "failed:bad_image": ("HandlerError", "bad_image"),
        "failed:invalid_input": ("InvalidInput", "invalid_input"),
        "failed:too_large": ("TooLarge", "too_large"),
        "failed:input_url_failed": ("InputUrlFailed", "input_url_failed"),
        "failed:oom": ("HandlerError", "oom"),
        "failed:timeout": ("HandlerTimeout", "timeout"),
        "failed:load_failed": ("HandlerLoadError", "load_failed"),
    }
    lacks: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("keys", "roles", "owners", "rate", "quota"), _STORE),
        **dict.fromkeys(("full", "counted", "counted_full", "away", "disk", "too_large"), _QUEUED),
        **dict.fromkeys(
            ("method", "headers", "cross_site", "metrics", "access_log", "described", "request_id", "trace_back"), _HTTP
        ),
        "worker": WAITS,
        "hang_up": STORED.replace("DELETE /v1/jobs/{id}", "`revoke`"),
        "webhook": "a task has its result backend, and `link`",
        "key_reused": "the key is the task's id: whatever comes again under it is the same task",
        "split": "a worker gives a task to the default version",
        "split_repeat": "a worker gives a task to the default version",
        "log": "the worker that reads a task logs nothing of it",
        "media": "the worker reads the input as the job runs",
        "misfit": "the worker checks the input as the job runs",
    }

    def send(self, site: Site, call: Call) -> Reply:
        if call.method or call.headers or site.home is not None:
            raise Unsupported(_HTTP)
        return self._send(self._app(site), call)

    def _app(self, site: Site) -> Any:
        routes = {"penstock.*": {"queue": "penstock"}}
        return site.once("celery", lambda: stock_celery(broker_url(site.redis_url), result_extended=True, task_routes=routes))

    def cancel(self, site: Site, call: Call, job: str) -> None:
        self._app(site).control.revoke(call.idempotency, terminate=True)

    def _send(self, app: Any, call: Call) -> Reply:
        options: dict[str, Any] = {"headers": {"traceparent": call.trace}} if call.trace else {}
        if call.deadline_s is not None:
            options["expires"] = call.deadline_s
        if call.idempotency:
            options["task_id"] = call.idempotency
        given = self._input_of(call)
        named = {"version": call.version, "priority": call.priority, "content_type": call.media}
        words = {name: value for name, value in named.items() if value}
        sent = app.send_task(f"penstock.{call.model}", given, words, **options)
        return self._result(sent, call.timeout_s)

    def _input_of(self, call: Call) -> list[Any]:
        if call.body is not None:
            return [call.body] if call.media else [] if call.body == b"" else [call.body, "one too many"]
        return [{"order": 7} if call.misfit else {"order": call.text}]

    def _result(self, sent: Any, timeout_s: float) -> Reply:
        try:
            output = sent.get(timeout=timeout_s, interval=0.01)
        except Exception as error:  # noqa: BLE001 - the class is made by Celery, and its name is what counts
            return Reply(status=type(error).__name__, code=str(error).partition(":")[0], text=str(error))
        finally:
            # A result that is collected later would look for a server that is gone.
            sent.backend.remove_pending_result(sent)
            sent.backend = None
        return Reply(status="SUCCESS", n=output["n"], size=len(str(output)))

    def is_refused(self, reply: Reply) -> bool:
        return reply.status != "SUCCESS"
