"""The one Celery app, for `celery -A penstock.broker.celery_app worker|inspect|control`.

Celery provides the worker process, remote control and events. Its transport carries none of our jobs: the queues are listed, so
that `inspect active_queues` and stock Flower show them and their depth, but only our own claim takes from them.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu.entity import Exchange, Queue
from kombu.messaging import Consumer
from kombu.transport.redis import Channel, QoS
from kombu.utils.objects import cached_property

from penstock.broker.celery_connection import CeleryConnection, celery_connection
from penstock.broker.partitions import queues_of_model
from penstock.broker.store.connection import CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from penstock.broker.store.ops import APP_QUEUE, PRIORITY_SEPARATOR, queue_name
from penstock.errors import ConfigError, InternalError
from penstock.settings.tables import Settings

TASK = "penstock.infer"
# Kombu's own steps: each priority has its own list, and stock Flower adds the four lists up.
PRIORITY_STEPS = (0, 3, 6, 9)
_EXCHANGE = Exchange("penstock", type="direct")  # type: ignore[no-untyped-call]


class ListedConsumer(Consumer):
    """Names its queues and takes nothing from them: jobs that Celery fetched would have no lease."""

    auto_declare = False

    def consume(self, no_ack: bool | None = None) -> None:
        """Does nothing; see the class."""

    def _consume_previously_active(self, active_no_ack: dict[str, Any]) -> None:
        """Does nothing; see the class."""

    def cancel(self) -> None:
        """Does nothing, because nothing is consumed."""

    close = cancel


class ListedDeliveries(QoS):
    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Does nothing: Celery delivers none of our jobs, and the search for lost deliveries takes scripts, which our Redis
        users may not run.
        """


class ListedQueues(AMQP):
    Consumer = ListedConsumer


class PenstockCelery(Celery):
    """`settings` are those that the app was built from; the worker's parts read them here."""

    settings: Settings

    @cached_property
    def Worker(self) -> Any:  # noqa: N802 - Celery's name
        # By string, as the pool and the step are: this package may not import workers, and clients need none of it.
        return self.subclass_with_self("penstock.workers.bootstep.program:WorkerProgram")


def _queue(name: str) -> Queue:
    return Queue(name, _EXCHANGE, routing_key=name)  # type: ignore[no-untyped-call]


def task_name(model: str) -> str:
    """The task of one model, `args=[input]`; the task `TASK` takes `args=[model, input]`."""
    return f"penstock.{model}"


def _run_elsewhere(*_: Any, **__: Any) -> Any:
    raise InternalError("a penstock task was called here; send it with delay, apply_async or send_task")


def build_app(settings: Settings) -> PenstockCelery:
    """The app for these settings; raises `ConfigError` without a store."""
    if not settings.store.url:
        raise ConfigError(
            "A worker needs a Redis or Valkey to work for, and none is set.",
            hint="set PENSTOCK_REDIS_URL, or use `penstock up`, which brings its own",
        )
    # For the process: kombu has no setting for it, and picks the class of a channel by the URL.
    Channel.QoS = ListedDeliveries
    store = celery_connection(settings.store.celery_url or settings.store.url)
    app = PenstockCelery("penstock", broker=store.url, backend=store.result_url, amqp=ListedQueues, set_as_current=False)
    app.settings = settings
    app.conf.update(_configuration(settings) | _transport(store))
    for name in (TASK, *(task_name(model) for model in settings.served_names)):
        app.task(_run_elsewhere, name=name)
    app.steps["consumer"].add("penstock.workers.bootstep.consumer:ClaimStep")
    return app


def _configuration(settings: Settings) -> dict[str, Any]:
    slots = sum(spec.slots for spec in settings.specs())
    queues = [queue for info in settings.model_infos() for queue in queues_of_model(info)]
    return {
        "accept_content": ["json"],
        "task_serializer": "json",
        "event_serializer": "json",
        "task_queues": [_queue(APP_QUEUE), *(_queue(queue_name(queue)) for queue in queues)],
        "task_default_queue": APP_QUEUE,
        # They never expire by themselves: kombu expires them by scripts, which our Redis users may not run.
        "control_queue_expires": None,
        "event_queue_expires": None,
        "worker_pool": "penstock.workers.bootstep.pool:DevicePool",
        "worker_concurrency": max(1, slots),
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_detect_quorum_queues": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # A store that refuses to write (its memory or disk is full) must not end the worker whose jobs would make room.
        "broker_channel_error_retry": True,
    }


def _transport(connection: CeleryConnection) -> dict[str, Any]:
    return {
        "broker_use_ssl": connection.tls,
        "redis_backend_use_ssl": connection.tls,
        "result_backend_transport_options": connection.options,
        "broker_transport_options": {
            "priority_steps": list(PRIORITY_STEPS),
            "sep": PRIORITY_SEPARATOR,
            "queue_order_strategy": "priority",
            # Without it, Celery's loop would wait for ever on a link that has gone silent, and see no signal.
            "socket_timeout": READ_TIMEOUT_S,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "health_check_interval": 10,
            **connection.options,
        },
    }


def __getattr__(name: str) -> Any:
    """`app`, from penstock.toml and the environment, on first use: importing this module reads no settings."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = build_app(Settings.load().of_worker())
    globals()["app"] = app
    return app
