"""Which model and version a path of the submit families names. Pure."""

from __future__ import annotations

from typing import NamedTuple

PREDICT = "/predictions/"
EXPLAIN = "/explanations/"
_MODELS = "/v1/models/"
_VERSIONS = "versions/"
_JOBS = "/jobs"


class SubmitTarget(NamedTuple):
    """Which submit endpoint a path names. `route` is the template for metrics."""

    route: str
    model: str
    version: str


def submit_target(path: str) -> SubmitTarget | None:
    """The endpoint of the submit families, by string operations alone; None for every other path."""
    for family in (PREDICT, EXPLAIN):
        if path.startswith(family):
            return _answer_target(family, path[len(family) :])
    if path.startswith(_MODELS) and path.endswith(_JOBS):
        return _jobs_target(path[len(_MODELS) : -len(_JOBS)])
    return None


def _answer_target(family: str, rest: str) -> SubmitTarget | None:
    model, slash, version = rest.partition("/")
    if not model or (slash and not version) or "/" in version:
        return None
    return SubmitTarget(f"{family}{{model}}/{{version}}" if slash else f"{family}{{model}}", model, version)


def _jobs_target(middle: str) -> SubmitTarget | None:
    model, slash, rest = middle.partition("/")
    version = rest[len(_VERSIONS) :] if rest.startswith(_VERSIONS) else ""
    if not model or (slash and not version) or "/" in version:
        return None
    return SubmitTarget("/v1/models/{model}/versions/{version}/jobs" if slash else "/v1/models/{model}/jobs", model, version)
