"""Profiles of ONNX Runtime sessions: cuts the recorded calls out of the trace and sums them up by operator."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TRACE, OPERATORS = "trace.json", "operators.txt"
_CALL = "model_run"
_COPIES = ("MemcpyFromHost", "MemcpyToHost")
_PREFIX = "session"
_TOP = 40


class _Twice:
    """A session that runs each call twice: the first run warms up, the second one is recorded."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def run(self, outputs: list[str], feed: dict[str, Any], options: Any = None) -> Any:
        self._session.run(outputs, feed, options)
        return self._session.run(outputs, feed, options)

    def io_binding(self) -> Any:
        return self._session.io_binding()

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        self._session.run_with_iobinding(binding, options)
        self._session.run_with_iobinding(binding, options)


class OnnxProfile:
    """A second session beside the serving one, because recording cannot be switched on for an open session.

    `open_twin` opens the second session, which records below a path. `swap` replaces the serving session and returns it.
    """

    def __init__(self, folder: Path, *, open_twin: Callable[[str], Any], swap: Callable[[Any], Any]) -> None:
        self._folder = folder
        self._open_twin = open_twin
        self._swap = swap
        self._twin: Any = None
        self._plain: Any = None

    def start(self) -> None:
        """Send the calls to the recording session from now on."""
        self._twin = self._open_twin(str(self._folder / _PREFIX))
        self._plain = self._swap(_Twice(self._twin))

    def stop(self) -> None:
        self._swap(self._plain)

    def save(self) -> float | None:
        """Write the files. Returns the seconds spent on copies between host and device; None without any copy."""
        raw = Path(self._twin.end_profiling())
        self._twin = None
        events = recorded(json.loads(raw.read_bytes()))
        raw.unlink()
        (self._folder / TRACE).write_text(json.dumps(events))
        (self._folder / OPERATORS).write_text(operators(events))
        copies = [event["dur"] for event in _nodes(events) if event["args"].get("op_name") in _COPIES]
        return sum(copies) / 1e6 if copies else None


def recorded(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of every second call; the calls between are warm-ups."""
    calls = sorted((event for event in events if event.get("name") == _CALL), key=lambda event: event["ts"])
    spans = [(call["ts"], call["ts"] + call["dur"]) for call in calls[1::2]]
    return [event for event in events if any(begin <= event.get("ts", -1) <= end for begin, end in spans)]


def operators(events: Sequence[dict[str, Any]]) -> str:
    """A table with a line per operator and provider, the most expensive first: calls, milliseconds, share."""
    times: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for event in _nodes(events):
        times[event["args"].get("op_name", "?"), event["args"].get("provider", "")].append(event["dur"])
    total = sum(map(sum, times.values())) or 1
    lines = [f"{'operator':<32}{'calls':>8}{'ms':>12}{'share':>8}  provider"]
    for (name, provider), spent in sorted(times.items(), key=lambda item: -sum(item[1]))[:_TOP]:
        lines.append(f"{name:<32}{len(spent):>8}{sum(spent) / 1e3:>12.3f}{sum(spent) / total:>8.1%}  {provider}")
    return "\n".join([*lines, ""])


def _nodes(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == "Node" and str(event.get("name", "")).endswith("_kernel_time")]
