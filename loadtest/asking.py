"""From what the user asked for to a benchmark that can run: defaults, checks, the questions to the server beforehand."""

from __future__ import annotations

import json
import math
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.client.problems import GatewayUnreachable, UnexpectedAnswer
from penstock.errors import BadRequest
from penstock.loadtest.adapters import ProtocolAdapter, open_door
from penstock.loadtest.bodies import from_schema, from_tensors, read_bodies
from penstock.loadtest.generator.arrivals import read_trace
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.observed.stack_facts import Standing
from penstock.loadtest.plan import Arrivals, CallStyle, Kind, Shape, read_rate

SCHEMA = "schema"
_DEFAULT_RATE = "100"
_DEFAULT_S, _DEFAULT_WARM_UP_S = 30.0, 5.0
_TRACE = "trace:"
_METADATA_S = 10.0


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options as given; None: left to the default. `subject` is a model's name or a URL."""

    subject: str
    target: Kind | None = None
    url: str | None = None
    version: str = ""
    client: CallStyle = CallStyle.SYNC
    method: str = ""
    headers: tuple[str, ...] = ()
    api_key: str | None = None
    body: str | None = None
    rate: str | None = None
    closed: int | None = None
    arrivals: str = Arrivals.POISSON.value
    duration_s: float | None = None
    warm_up_s: float | None = None
    deadline_s: float | None = None
    processes: int = 1
    connections: int = 1_024
    seed: int = 1

    @property
    def kind(self) -> Kind:
        return self.target or (Kind.HTTP if "://" in self.subject else Kind.PENSTOCK)

    @property
    def body_text(self) -> str:
        """What `--body` says or, unsaid, means; empty: none."""
        return self.body or (SCHEMA if self.kind in (Kind.PENSTOCK, Kind.OIP) else "")


def shape_of(asked: LoadOptions) -> Shape:
    """When the calls leave. Raises `BadRequest` for options that contradict each other or cannot be read."""
    if asked.closed is not None:
        return _closed(asked, asked.closed)
    trace = _trace(asked)
    if trace and asked.rate:
        raise BadRequest("a trace has its own rate", hint="leave out --rate or the trace")
    duration_s = asked.duration_s or (_length_s(trace, asked.warm_up_s or 0.0) if trace else _DEFAULT_S)
    return Shape(
        duration_s=duration_s,
        warm_up_s=_warm_up_s(asked, 0.0 if trace else _DEFAULT_WARM_UP_S),
        profile=() if trace else read_rate(asked.rate or _DEFAULT_RATE, duration_s),
        arrivals=Arrivals.TRACE if trace else _arrivals(asked.arrivals),
        trace=tuple(trace),
        seed=asked.seed,
        deadline_s=asked.deadline_s or math.inf,
        most=asked.connections,
    )


def _closed(asked: LoadOptions, concurrency: int) -> Shape:
    if asked.rate or asked.arrivals != Arrivals.POISSON:
        raise BadRequest("--closed sends as fast as answers come", hint="leave out --rate and --arrivals, or --closed")
    if concurrency < asked.processes:
        raise BadRequest(f"{asked.processes} processes cannot share {concurrency} calls", hint="fewer --processes")
    return Shape(
        duration_s=asked.duration_s or _DEFAULT_S,
        warm_up_s=_warm_up_s(asked, _DEFAULT_WARM_UP_S),
        concurrency=concurrency,
        seed=asked.seed,
        deadline_s=asked.deadline_s or math.inf,
    )


def _warm_up_s(asked: LoadOptions, default_s: float) -> float:
    return default_s if asked.warm_up_s is None else asked.warm_up_s


def _arrivals(text: str) -> Arrivals:
    if text not in (Arrivals.POISSON, Arrivals.CONSTANT):
        raise BadRequest(f"--arrivals {text!r} is unknown", hint="poisson, constant, or trace:FILE")
    return Arrivals(text)


def _trace(asked: LoadOptions) -> list[float]:
    if not asked.arrivals.startswith(_TRACE):
        return []
    path = Path(asked.arrivals.removeprefix(_TRACE))
    try:
        return read_trace(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as fault:
        raise BadRequest(f"the trace {path} cannot be read: {fault}", hint="--arrivals trace:FILE") from fault


def _length_s(trace: Sequence[float], warm_up_s: float) -> float:
    """To just behind the last call, so that it is one of the measured."""
    if trace[-1] < warm_up_s:
        raise BadRequest(f"the trace is over after {trace[-1]:g} s, within the warm-up", hint="a shorter --warm-up")
    return max(0.5, math.nextafter(trace[-1] - warm_up_s, math.inf) + 1e-6)


def bodies_for(asked: LoadOptions, base: str, standing: Standing) -> list[RequestBody]:
    """Raises `BadRequest`, and what asking an OIP server for its metadata raises."""
    text = asked.body_text
    if not text:
        return []
    if text != SCHEMA:
        return read_bodies(text)
    if asked.kind is Kind.PENSTOCK:
        return [from_schema(standing.input_schema, asked.subject)]
    if asked.kind is Kind.OIP:
        return [from_tensors(_tensors(base, asked.subject), asked.subject)]
    raise BadRequest(f"a {asked.kind} server declares no schema to make an input from", hint="name one: --body @FILE")


def _tensors(base: str, model: str) -> list[Mapping[str, Any]]:
    """The inputs that the model's metadata declares."""
    where = f"{base}/v2/models/{urllib.parse.quote(model, safe='')}"
    try:
        with urllib.request.urlopen(where, timeout=_METADATA_S) as answer:
            found = json.loads(answer.read())
    except urllib.error.HTTPError as fault:
        raise UnexpectedAnswer(f"{where} answered {fault.code}", hint="check the model's name, or give --body") from fault
    except OSError as fault:
        raise GatewayUnreachable(f"{where} cannot be reached: {fault}", hint="check --url") from fault
    except ValueError as fault:
        raise UnexpectedAnswer(f"{where} did not answer with JSON", hint="give --body @FILE") from fault
    inputs = found.get("inputs") if isinstance(found, dict) else None
    return [tensor for tensor in inputs or [] if isinstance(tensor, dict)]


def base_of(asked: LoadOptions, gateway: str | None) -> str:
    """The server's address. `gateway` is that of penstock, found as every command finds it."""
    if asked.kind is Kind.PENSTOCK:
        return gateway or ""
    if asked.kind is Kind.HTTP and "://" in asked.subject:
        return asked.subject
    if not asked.url:
        raise BadRequest(f"--target {asked.kind} needs its address", hint="--url http://host:port")
    return asked.url


def door_of(asked: LoadOptions, base: str, *, has_body: bool) -> ProtocolAdapter:
    return open_door(
        asked.kind,
        base,
        "" if asked.kind is Kind.HTTP else asked.subject,
        caller=asked.client,
        version=asked.version,
        deadline_s=asked.deadline_s,
        method=asked.method.upper() or ("POST" if has_body else "GET"),
        headers=_headers(asked),
    )


def _headers(asked: LoadOptions) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in asked.headers:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not line.isascii() or not line.isprintable():
            raise BadRequest(f"--header {line!r} cannot be sent", hint="write it like --header 'Name: value'")
        found[name.strip()] = value.strip()
    # A key for our gateway is nobody else's business.
    if asked.kind is Kind.PENSTOCK and asked.api_key:
        found.setdefault("Authorization", f"Bearer {asked.api_key}")
    return found


def as_told(asked: LoadOptions, shape: Shape) -> dict[str, object]:
    """The load as the reports repeat it, without what was not asked for. No header is among it: they may hold keys."""
    trace = asked.arrivals.removeprefix(_TRACE) if shape.trace else None
    told = {
        "closed": asked.closed,
        "rate": None if asked.closed or trace else asked.rate or _DEFAULT_RATE,
        "arrivals": None if asked.closed or trace else shape.arrivals.value,
        "trace": trace,
        "duration_s": shape.duration_s,
        "warm_up_s": shape.warm_up_s,
        "deadline_s": asked.deadline_s,
        "body": asked.body_text or None,
        "processes": asked.processes,
        "seed": asked.seed,
    }
    return {name: value for name, value in told.items() if value is not None}


def need_writable(path: Path | None) -> None:
    """Raises `BadRequest` now rather than when the measuring is done."""
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise BadRequest(f"{path} cannot be written", hint="name a file in a folder that exists")
