"""Numbers, moments and ids as people read them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

NOTHING = "–"


def seconds(value: float | None) -> str:
    """12 µs, 0.3 ms, 320 ms, 4.2 s, 3 min 20 s, 2 h 5 min, 3 d."""
    if value is None:
        return NOTHING
    if value >= 59.5:
        return _long(round(value))
    if value >= 0.9995:
        return f"{value:.1f} s" if value < 9.95 else f"{value:.0f} s"
    if value >= 0.000_095:
        return f"{value * 1e3:.1f} ms" if value < 0.00995 else f"{value * 1e3:.0f} ms"
    return f"{value * 1e6:.0f} µs" if value > 0.0 else "0 s"


def _long(total: int) -> str:
    days, hours, minutes, rest = total // 86_400, total // 3_600 % 24, total // 60 % 60, total % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next(place for place, (value, _) in enumerate(parts) if value)
    return " ".join(f"{value} {unit}" for value, unit in parts[first : first + 2] if value)


def count(value: float) -> str:
    """1,234; from a million on 1.2 M."""
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:.1f} M"


def rate(value: float | None) -> str:
    """Per second: 0.25, 4.2, 1,300."""
    if value is None:
        return NOTHING
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.2f}"


def size(value: int) -> str:
    """120 B, 4.2 KiB, 31 MiB."""
    if value < 1024:
        return f"{value} B"
    scaled, unit = (value / 1024, "KiB") if value < 1024**2 else (value / 1024**2, "MiB")
    return f"{scaled:.1f} {unit}" if scaled < 9.95 else f"{scaled:.0f} {unit}"


def ago(at: float | None, now: float) -> str:
    return NOTHING if at is None else f"{seconds(max(0.0, now - at))} ago" if now - at >= 1 else "just now"


def moment(at: float) -> str:
    """For people; the machine's form is RFC 3339."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def plural(number: int, word: str, words: str = "") -> str:
    return f"{count(number)} {word if number == 1 else words or word + 's'}"


def cores(numbers: tuple[int, ...]) -> str:
    """0-3, 8: ranges, as taskset writes them."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts) or NOTHING
