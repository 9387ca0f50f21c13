"""The log of the gateway, the workers and the runner: how its lines are written, and which events of a job stand in it.

A line is one JSON object on standard output, or prose where standard output is a terminal.
"""

from __future__ import annotations

import logging
import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO

from penstock.job import JobId
from penstock.trace_context import trace_id_of

# The settings and the client import this module for its names, so structlog is imported only where logs are configured.
if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

JOB_ACCEPTED = "job_accepted"
JOB_CLAIMED = "job_claimed"
JOB_RETRIED = "job_retried"  # delayed after a failure that may pass
JOB_RELEASED = "job_released"  # given back unharmed: the worker drains, or the child ended because of other jobs
JOB_LOST = "job_lost"  # its worker, or the process that ran it, is gone
JOB_CANCEL_ASKED = "job_cancel_asked"  # it runs, and ends with its batch
JOB_FINISHED = "job_finished"

# A caller or operator asked for these ends, so they are no problems.
WANTED_ENDS = frozenset({"succeeded", "cancelled"})


class JobLines(StrEnum):
    """Which changes of a job's state are logged: all, those that a healthy job never makes (`problems`), or none."""

    ALL = "all"
    PROBLEMS = "problems"
    OFF = "off"


def job_fields(job: JobId, *, version: str, batch: str = "", trace: str = "") -> dict[str, str]:
    """The fields that every line about a job has. A field without a value is empty, so that each line has the same columns."""
    return {"job_id": str(job), "model": job.model, "version": version, "batch_id": batch, "trace_id": trace_id_of(trace)}


def configure(level: int = logging.INFO, *, libraries: int | None = None) -> None:
    """Set up the log of a process that is ours alone: this replaces the root logger's handlers.

    `level` holds for our own lines, `libraries` for those that libraries write through `logging`: `level` too, unless given.
    """
    import structlog

    before: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    after = renderers(terminal=sys.stdout.isatty())
    # Our lines go straight to the stream: the way through `logging` takes several times as long per line.
    structlog.configure(
        processors=[*before, *after],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda name="penstock": _LineWriter(name, sys.stdout),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before, _add_own_facts],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *after],
        )
    )
    logging.basicConfig(level=level if libraries is None else libraries, handlers=[handler], force=True)
    logging.getLogger("penstock").setLevel(level)


def renderers(*, terminal: bool) -> list[Processor]:
    """What turns an event into its line. Tracebacks come without local variables: those may hold a caller's input."""
    import structlog

    if terminal:
        colors, plain = not os.environ.get("NO_COLOR"), structlog.dev.plain_traceback
        in_line = structlog.dev.ConsoleRenderer(pad_event_to=0, pad_level=False, colors=colors, exception_formatter=plain)
        return [_shorten, in_line]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _shorten(logger: logging.Logger, method: str, event: EventDict) -> EventDict:
    """Leave out what a person at a terminal needs least, so that most lines fit: the date, and our own module."""
    if str(event.get("logger", "")).startswith("penstock"):
        del event["logger"]
    if "timestamp" in event:
        event["timestamp"] = event["timestamp"][len("2026-11-23T") :][: len("23:41:44")]
    return event


def _add_own_facts(logger: logging.Logger, method: str, event: EventDict) -> EventDict:
    """Add the `extra` of a record that our own code logged through `logging`, as the code does that also runs in a command.

    A library's `extra` is left out: it may hold anything.
    """
    import structlog

    record: logging.LogRecord = event["_record"]
    return structlog.stdlib.ExtraAdder()(logger, method, event) if record.name.startswith("penstock.") else event


class _LineWriter:
    """Where structlog hands each finished line over. A line is one write, so that lines of two threads never mix."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name, self._stream = name, stream

    def write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    debug = info = warning = error = critical = write
