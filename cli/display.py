"""Output for people and for programs: columns, JSON lines, ages, and a job's line of timings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

import typer

from penstock.client.views import JobView
from penstock.words import duration

_COLORS = {"succeeded": "green", "failed": "red", "expired": "yellow", "cancelled": "yellow", "running": "cyan"}


def is_colored(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR")


def print_json(value: Any) -> None:
    """One line of JSON on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_faint(text: str) -> None:
    """A remark on stderr, so that a pipe gets only the output."""
    line = typer.style(text, dim=True) if is_colored(sys.stderr) else text
    sys.stderr.write(line + "\n")


def print_ids(ids: Iterable[str]) -> None:
    """One per line and nothing else, for `xargs` and `for` in a shell."""
    sys.stdout.writelines(f"{one}\n" for one in ids)
    sys.stdout.flush()


def print_secret(secret: str, remark: str) -> None:
    """Print only the key or secret on stdout, for a file or a variable; on stderr what it is and what to do with it."""
    sys.stderr.write(f"{remark}\n")
    sys.stdout.write(f"{secret}\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns, never cut, because a cut id cannot be copied."""
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    header = "  ".join(name.ljust(width) for name, width in zip(columns, widths, strict=True)).rstrip()
    sys.stdout.write((typer.style(header, bold=True) if is_colored(sys.stdout) else header) + "\n")
    for row in rows:
        cells = [_paint(cell.ljust(width), cell) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def print_fields(fields: Mapping[str, Any]) -> None:
    """One `name  value` line per field; empty values are left out."""
    shown = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
    width = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        sys.stdout.write(f"{name.ljust(width)}  {_paint(str(value), str(value))}\n")


def timing_line(job: JobView, *, max_batch_size: int | None = None) -> str:
    """`queued 1 ms | batch 3/8 (full) | ran 0.3 ms | total 4 ms`, limited to the record's parts."""
    parts = [f"{word} {duration(seconds)}" for word, seconds in [("queued", _queued_s(job))] if seconds is not None]
    if job.batch is not None and job.batch.size:
        of = f"/{max_batch_size}" if max_batch_size else ""
        why = f" ({job.batch.reason})" if job.batch.reason else ""
        parts += [f"batch {job.batch.size}{of}{why}", f"ran {duration(job.batch.run_s)}"]
    if job.attempts > 1:
        parts.append(f"{job.attempts} attempts")
    total_s = total_seconds(job)
    return " | ".join([*parts, f"total {duration(total_s)}"] if total_s is not None else parts)


def age(moment: datetime | None, *, now: datetime | None = None) -> str:
    if moment is None:
        return "-"
    return duration(max(0.0, ((now or datetime.now(UTC)) - moment).total_seconds()))


def delayed_until(job: JobView, *, now: datetime | None = None) -> str:
    """`delayed until ...` for a job that waits for its start, else empty."""
    if job.status != "queued" or job.not_before is None or job.not_before <= (now or datetime.now(UTC)):
        return ""
    return f"delayed until {job.not_before.isoformat(timespec='seconds')}"


def total_seconds(job: JobView) -> float | None:
    """Seconds from accepted to ended; None for a job that has not ended."""
    return _between(job.created_at, job.finished_at)


def _queued_s(job: JobView) -> float | None:
    return _between(job.created_at, job.started_at)


def _between(start: datetime | None, end: datetime | None) -> float | None:
    return max(0.0, (end - start).total_seconds()) if start and end else None


def _paint(padded: str, word: str) -> str:
    color = _COLORS.get(word)
    return typer.style(padded, fg=color) if color and is_colored(sys.stdout) else padded
