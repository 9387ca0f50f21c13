"""A split as an operator writes it, checked: all faults are reported at once, each with its place. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.extensions.splits.canary import WHOLE, Canary
from penstock.extensions.splits.split import Shadow, Split
from penstock.model_spec import ModelInfo

MOST_VERSIONS = 16
MOST_STEPS = 50
# Three weights of a third, written with two decimals, add up to 99.99.
_SLACK = 0.015
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
Fault = dict[str, str]


class _Canary(msgspec.Struct, forbid_unknown_fields=True):
    version: str
    steps: tuple[float, ...] = (1.0, 5.0, 25.0, 100.0)
    step_s: float = 300.0
    max_errors: float = 0.01
    max_p99: float = 1.2
    min_samples: int = 200


class _Shadow(msgspec.Struct, forbid_unknown_fields=True):
    version: str
    share: float
    tolerance: float = 1e-6


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    weights: dict[str, float] = {}
    sticky: str = ""
    shadow: _Shadow | None = None
    canary: _Canary | None = None


# `convert` reads the type as a decoder does: D106.
msgspec.json.Decoder(_Body)


def read_split(body: Mapping[str, Any], id: str, info: ModelInfo, *, now: float) -> Split:
    """The split that the body asks for. Without weights, the default version gets all that no canary gets.

    Raises `InvalidInput` with the place of each fault.
    """
    try:
        asked = msgspec.convert(body, _Body)
    except msgspec.ValidationError as error:
        raise _invalid([_placed(str(error))]) from None
    weights = asked.weights or _to_default(asked.canary, info)
    faults = [*_weight_faults(weights), *_sticky_faults(asked.sticky), *_canary_faults(asked.canary, weights)]
    faults += _shadow_faults(asked.shadow, weights, asked.canary)
    if faults:
        raise _invalid(faults)
    return Split(
        id=id,
        weights={version: float(weight) for version, weight in weights.items()},
        sticky=asked.sticky.lower(),
        shadow=Shadow(asked.shadow.version, asked.shadow.share, asked.shadow.tolerance) if asked.shadow else None,
        canary=_made(asked.canary, now) if asked.canary else None,
        made_at=now,
    )


def _to_default(canary: _Canary | None, info: ModelInfo) -> dict[str, float]:
    if canary is not None and canary.version == info.default_version:
        detail = f"is the default version of {info.name!r}, which gets what no canary gets: send the weights of the others"
        raise _invalid([_fault("/canary/version", detail)])
    return {info.default_version: WHOLE}


def _made(asked: _Canary, now: float) -> Canary:
    return Canary(asked.version, asked.steps, asked.step_s, asked.max_errors, asked.max_p99, asked.min_samples, since=now)


def check_versions(split: Split, info: ModelInfo, ready_slots: Callable[[str], int]) -> None:
    """Raises `NotFound` for a version that the model does not have, `Conflict` for one that cannot take requests now, and for
    versions of which only some yield chunks.
    """
    used = sorted(split.used() | split.weights.keys())
    for version in used:
        if version not in info.versions:
            known = ", ".join(info.versions)
            raise NotFound(f"model {info.name!r} has no version {version!r}", hint=f"Its versions: {known}.")
    for version in used:
        if not ready_slots(version):
            raise Conflict(
                f"version {version!r} of {info.name!r} is not ready on any worker, so its share of the callers would wait",
                hint=f"GET /v1/models/{info.name} says what keeps it; split when it is ready.",
            )
    streams_of = {version: loaded.streams for version in used if (loaded := info.versions[version]) is not None}
    if len(set(streams_of.values())) > 1:
        streaming = ", ".join(version for version, streams in streams_of.items() if streams)
        raise Conflict(
            f"of the versions {', '.join(streams_of)} only {streaming} stream: callers would get streams or not by chance",
            hint="Split between versions that all stream, or that all do not.",
        )


def _weight_faults(weights: Mapping[str, float]) -> Iterator[Fault]:
    if len(weights) > MOST_VERSIONS:
        yield _fault("/weights", f"has {len(weights)} versions; at most {MOST_VERSIONS} can share a model")
    for version, weight in weights.items():
        if not 0.0 <= weight <= WHOLE:
            yield _fault(f"/weights/{version[:64]}", f"must be percent, from 0 to 100, not {weight:g}")
    whole = sum(weights.values())
    if not abs(whole - WHOLE) <= _SLACK:
        yield _fault("/weights", f"must add up to 100 percent, and these add up to {whole:g}")


def _sticky_faults(sticky: str) -> Iterator[Fault]:
    if sticky and not _HEADER.fullmatch(sticky):
        yield _fault("/sticky", "must be the name of a request header, such as x-user-id")


def _canary_faults(canary: _Canary | None, weights: Mapping[str, float]) -> Iterator[Fault]:
    if canary is None:
        return
    if canary.version in weights:
        yield _fault(
            "/canary/version",
            f"gets what its steps say: leave {canary.version[:64]!r} out of the weights, which are those of the others",
        )
    steps = canary.steps
    rising = all(before < after for before, after in pairwise(steps))
    if not 1 <= len(steps) <= MOST_STEPS or not rising or not all(0.0 < step <= WHOLE for step in steps):
        yield _fault("/canary/steps", f"must be 1 to {MOST_STEPS} percentages above 0 and up to 100, each above the one before")
    elif steps[0] == WHOLE:
        yield _fault("/canary/steps", "must begin below 100: there would be no other version to compare with")
    for name, least, most in (
        ("step_s", 1.0, 30 * 86_400.0),
        ("max_errors", 0.0, 1.0),
        ("max_p99", 1.0, 1_000.0),
        ("min_samples", 1, 10_000_000),
    ):
        value = getattr(canary, name)
        if not (math.isfinite(value) and least <= value <= most):
            yield _fault(f"/canary/{name}", f"must be from {least:g} to {most:g}, not {value:g}")


def _shadow_faults(shadow: _Shadow | None, weights: Mapping[str, float], canary: _Canary | None) -> Iterator[Fault]:
    if shadow is None:
        return
    if weights.get(shadow.version, 0.0) > 0.0 or (canary is not None and canary.version == shadow.version):
        yield _fault("/shadow/version", f"version {shadow.version[:64]!r} answers requests itself; a shadow never does")
    if not 0.0 < shadow.share <= WHOLE:
        yield _fault("/shadow/share", f"must be percent, above 0 and up to 100, not {shadow.share:g}")
    if not 0.0 <= shadow.tolerance <= 1.0:
        yield _fault("/shadow/tolerance", f"must be from 0 to 1, relative to the larger number, not {shadow.tolerance:g}")


def _placed(message: str) -> Fault:
    """msgspec's message as a fault: `Expected `float`, got `str` - at `$.weights[...]``."""
    text, _, path = message.partition(" - at `$")
    pointer = path.rstrip("`").replace("[...]", "").replace(".", "/")
    return _fault(pointer, text[:1].lower() + text[1:].replace("`", "'"))


def _fault(pointer: str, detail: str) -> Fault:
    return {"pointer": pointer, "detail": detail}


def _invalid(faults: list[Fault]) -> InvalidInput:
    first = faults[0]
    name = first["pointer"].strip("/").replace("/", ".") or "the body"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return InvalidInput(f"this split cannot be used: {name} {first['detail']}{more}", errors=faults)
