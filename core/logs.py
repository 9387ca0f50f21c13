"""One JSON object per line on standard output, prose on a terminal: ours by structlog, the libraries' through `logging`."""

from __future__ import annotations

import logging
import os
import sys

import structlog
from structlog.typing import Processor


def configure(level: int | None) -> None:
    """For a process that is ours alone: replaces the root logger's handlers."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(sys.stdout.isatty())],
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level or logging.INFO, handlers=[handler], force=True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _renderers(terminal: bool) -> list[Processor]:
    if terminal:
        return [structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
