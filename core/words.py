"""Numbers, sizes, durations and moments as people read them. Pure; every function takes None where a value may be unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

UNKNOWN = "–"
# Stands for a value that may be a secret.
MASK = "***"
_SIZE_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def number(value: float | None) -> str:
    """Three significant digits: 0.0421, 4.21, 421, 42,100."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(decimals, 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float) -> str:
    """1,234; from a million on 1.2 M."""
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:.1f} M"


def plural(value: float, singular: str, plural_form: str = "") -> str:
    """`1 job`, `1,234 jobs`; `plural_form` where adding an `s` is not enough."""
    return f"{count(value)} {singular if value == 1 else plural_form or singular + 's'}"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{number(share * 100)} %"


def per_second(value: float | None) -> str:
    return UNKNOWN if value is None else f"{number(value)}/s"


def size(size_bytes: float | None) -> str:
    """120 B, 4.2 KiB, 31 MiB, 1.5 GiB."""
    if size_bytes is None:
        return UNKNOWN
    for unit, unit_bytes in _SIZE_UNITS:
        if size_bytes >= unit_bytes:
            return f"{number(size_bytes / unit_bytes)} {unit}"
    return f"{size_bytes:.0f} B"


def milliseconds(value_ms: float | None) -> str:
    """Always in milliseconds, so that a column of latencies can be compared: 0.421 ms, 1,300 ms."""
    return UNKNOWN if value_ms is None else f"{number(value_ms)} ms"


def duration(seconds: float | None) -> str:
    """In the unit that fits: 12 µs, 0.3 ms, 320 ms, 4.2 s, 3 min 20 s, 2 h 5 min, 3 d."""
    if seconds is None:
        return UNKNOWN
    if seconds >= 59.5:
        return _two_units(round(seconds))
    if seconds >= 0.9995:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds >= 0.000_095:
        return f"{seconds * 1e3:.1f} ms" if seconds < 0.00995 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e6:.0f} µs" if seconds > 0.0 else "0 s"


def _two_units(seconds: int) -> str:
    days, hours, minutes, rest = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60, seconds % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next(index for index, (value, _) in enumerate(parts) if value)
    return " ".join(f"{value} {unit}" for value, unit in parts[first : first + 2] if value)


def ago(at: float | None, now: float) -> str:
    """`12 s ago`; both moments are Unix times."""
    if at is None:
        return UNKNOWN
    return f"{duration(now - at)} ago" if now - at >= 1 else "just now"


def moment(at: float) -> str:
    """A Unix time for people; programs get RFC 3339 instead."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 8`: runs of neighbours joined, as taskset writes cores."""
    runs: list[list[int]] = []
    for value in sorted(numbers):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs) or UNKNOWN
