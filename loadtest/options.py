"""From the command line's options to a load test: defaults, checks, and requests to the server."""

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
from penstock.loadtest.adapters import ProtocolAdapter, make_adapter
from penstock.loadtest.bodies import from_schema, from_tensors, read_bodies
from penstock.loadtest.generator.arrivals import read_trace
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.observed.stack_facts import ModelFacts
from penstock.loadtest.workload import Arrivals, CallStyle, Kind, Shape, read_rate

SCHEMA = "schema"
_DEFAULT_RATE = "100"
_DEFAULT_S, _DEFAULT_WARM_UP_S = 30.0, 5.0
_TRACE = "trace:"
_METADATA_S = 10.0


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options as given; None: the default applies. `subject` is a model's name or a URL."""

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
        """The value of `--body`, or its default; empty: requests without a body."""
        return self.body or (SCHEMA if self.kind in (Kind.PENSTOCK, Kind.OIP) else "")


def shape_of(options: LoadOptions) -> Shape:
    """The schedule of the calls. Raises `BadRequest` for options that contradict each other or cannot be read."""
    if options.closed is not None:
        return _closed(options, options.closed)
    trace = _trace(options)
    if trace and options.rate:
        raise BadRequest("a trace has its own rate", hint="leave out --rate or the trace")
    duration_s = options.duration_s or (_length_s(trace, options.warm_up_s or 0.0) if trace else _DEFAULT_S)
    return Shape(
        duration_s=duration_s,
        warm_up_s=_warm_up_s(options, 0.0 if trace else _DEFAULT_WARM_UP_S),
        profile=() if trace else read_rate(options.rate or _DEFAULT_RATE, duration_s),
        arrivals=Arrivals.TRACE if trace else _arrivals(options.arrivals),
        trace=tuple(trace),
        seed=options.seed,
        deadline_s=options.deadline_s or math.inf,
        most=options.connections,
    )


def _closed(options: LoadOptions, concurrency: int) -> Shape:
    if options.rate or options.arrivals != Arrivals.POISSON:
        raise BadRequest("--closed sends as fast as answers come", hint="leave out --rate and --arrivals, or --closed")
    if concurrency < options.processes:
        raise BadRequest(f"{options.processes} processes cannot share {concurrency} calls", hint="use fewer --processes")
    return Shape(
        duration_s=options.duration_s or _DEFAULT_S,
        warm_up_s=_warm_up_s(options, _DEFAULT_WARM_UP_S),
        concurrency=concurrency,
        seed=options.seed,
        deadline_s=options.deadline_s or math.inf,
    )


def _warm_up_s(options: LoadOptions, default_s: float) -> float:
    return default_s if options.warm_up_s is None else options.warm_up_s


def _arrivals(text: str) -> Arrivals:
    if text not in (Arrivals.POISSON, Arrivals.CONSTANT):
        raise BadRequest(f"--arrivals {text!r} is unknown", hint="poisson, constant, or trace:FILE")
    return Arrivals(text)


def _trace(options: LoadOptions) -> list[float]:
    if not options.arrivals.startswith(_TRACE):
        return []
    path = Path(options.arrivals.removeprefix(_TRACE))
    try:
        return read_trace(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as fault:
        raise BadRequest(f"the trace {path} cannot be read: {fault}", hint="--arrivals trace:FILE") from fault


def _length_s(trace: Sequence[float], warm_up_s: float) -> float:
    """The measured time ends just after the last call, so that this call counts."""
    if trace[-1] < warm_up_s:
        raise BadRequest(f"the trace is over after {trace[-1]:g} s, within the warm-up", hint="choose a shorter --warm-up")
    return max(0.5, math.nextafter(trace[-1] - warm_up_s, math.inf) + 1e-6)


def bodies_for(options: LoadOptions, base: str, standing: ModelFacts) -> list[RequestBody]:
    """Raises `BadRequest`, and the errors of reading an OIP server's metadata."""
    text = options.body_text
    if not text:
        return []
    if text != SCHEMA:
        return read_bodies(text)
    if options.kind is Kind.PENSTOCK:
        return [from_schema(standing.input_schema, options.subject)]
    if options.kind is Kind.OIP:
        return [from_tensors(_tensors(base, options.subject), options.subject)]
    raise BadRequest(f"a {options.kind} server declares no schema to make an input from", hint="name an input: --body @FILE")


def _tensors(base: str, model: str) -> list[Mapping[str, Any]]:
    """The inputs that the model's metadata declares."""
    where = f"{base}/v2/models/{urllib.parse.quote(model, safe='')}"
    try:
        with urllib.request.urlopen(where, timeout=_METADATA_S) as answer:
            metadata = json.loads(answer.read())
    except urllib.error.HTTPError as fault:
        raise UnexpectedAnswer(f"{where} answered {fault.code}", hint="check the model's name, or give --body") from fault
    except OSError as fault:
        raise GatewayUnreachable(f"{where} cannot be reached: {fault}", hint="check --url") from fault
    except ValueError as fault:
        raise UnexpectedAnswer(f"{where} did not answer with JSON", hint="give --body @FILE") from fault
    inputs = metadata.get("inputs") if isinstance(metadata, dict) else None
    return [tensor for tensor in inputs or [] if isinstance(tensor, dict)]


def server_address(options: LoadOptions, gateway: str | None) -> str:
    """`gateway`: the address of penstock's gateway, resolved as for every command."""
    if options.kind is Kind.PENSTOCK:
        return gateway or ""
    if options.kind is Kind.HTTP and "://" in options.subject:
        return options.subject
    if not options.url:
        raise BadRequest(f"--target {options.kind} needs its address", hint="--url http://host:port")
    return options.url


def adapter_for(options: LoadOptions, base: str, *, has_body: bool) -> ProtocolAdapter:
    return make_adapter(
        options.kind,
        base,
        "" if options.kind is Kind.HTTP else options.subject,
        caller=options.client,
        version=options.version,
        deadline_s=options.deadline_s,
        method=options.method.upper() or ("POST" if has_body else "GET"),
        headers=_headers(options),
    )


def _headers(options: LoadOptions) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in options.headers:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not line.isascii() or not line.isprintable():
            raise BadRequest(f"--header {line!r} cannot be sent", hint="write it like --header 'Name: value'")
        headers[name.strip()] = value.strip()
    # Other servers must not see a key of our gateway.
    if options.kind is Kind.PENSTOCK and options.api_key:
        headers.setdefault("Authorization", f"Bearer {options.api_key}")
    return headers


def describe_load(options: LoadOptions, shape: Shape) -> dict[str, object]:
    """The load's options for reports, without defaults, and without headers, which may hold keys."""
    trace = options.arrivals.removeprefix(_TRACE) if shape.trace else None
    described = {
        "closed": options.closed,
        "rate": None if options.closed or trace else options.rate or _DEFAULT_RATE,
        "arrivals": None if options.closed or trace else shape.arrivals.value,
        "trace": trace,
        "duration_s": shape.duration_s,
        "warm_up_s": shape.warm_up_s,
        "deadline_s": options.deadline_s,
        "body": options.body_text or None,
        "processes": options.processes,
        "seed": options.seed,
    }
    return {name: value for name, value in described.items() if value is not None}


def check_writable(path: Path | None) -> None:
    """Raises `BadRequest` now rather than after the measurement."""
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise BadRequest(f"{path} cannot be written", hint="name a file in a folder that exists")
