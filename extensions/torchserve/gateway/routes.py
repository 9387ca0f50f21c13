"""Which paths are TorchServe's, and what each asks for. Pure; string operations only, as every request pays."""

from __future__ import annotations

from typing import NamedTuple

PING = "/ping"
API_DESCRIPTION = "/api-description"
INVOCATIONS = "/invocations"
WORKFLOW = "/wfpredict/{workflow}"
_KSERVE_V1 = "/v1/models/"
_KSERVE_V2 = "/v2/models/"
_VERSIONS = "versions/"
_MANAGEMENT = frozenset({"models", "token", "workflows"})
_FIXED = frozenset({PING, API_DESCRIPTION, INVOCATIONS})


class TorchServeTarget(NamedTuple):
    """What a path names. `route` is its template, as metrics show it.

    `explain`, `url_path`: what the handler finds under these names among the headers; None: nothing. `has_fields`: query
    parameters are fields of the input. `is_v2`: the path is the Open Inference Protocol's, too, which models of our own speak.
    """

    route: str
    model: str = ""
    version: str = ""
    explain: str | None = None
    url_path: str | None = None
    has_fields: bool = False
    is_v2: bool = False

    @property
    def is_public(self) -> bool:
        """Whether it is answered to callers without a key."""
        return self.route in (PING, API_DESCRIPTION)


def target_of(path: str, method: str) -> TorchServeTarget | None:
    """The target of a path of TorchServe's inference routes, None for every other path. A slash at the end is tolerated."""
    bare = path[:-1] if path.endswith("/") else path
    if bare in _FIXED:
        return TorchServeTarget(bare, has_fields=bare == INVOCATIONS)
    if not bare:
        return TorchServeTarget(API_DESCRIPTION) if method == "OPTIONS" else None
    first, _, rest = bare[1:].partition("/")
    if first in ("predictions", "explanations"):
        return _prediction(first, rest)
    if first == "wfpredict":
        return TorchServeTarget(WORKFLOW, rest, explain="False", url_path="")
    if bare.startswith(_KSERVE_V1):
        return _kserve_v1(bare[len(_KSERVE_V1) :])
    if bare.startswith(_KSERVE_V2):
        return _kserve_v2(bare[len(_KSERVE_V2) :])
    return _named_before(first, rest)


def _prediction(family: str, rest: str) -> TorchServeTarget:
    model, _, rest = rest.partition("/")
    version, _, url_path = rest.partition("/")
    explain = "True" if family == "explanations" else "False"
    names = "/{model}/{version}" if version else "/{model}"
    return TorchServeTarget(f"/{family}{names}", model, version, explain, url_path)


def _kserve_v1(rest: str) -> TorchServeTarget | None:
    model, colon, verb = rest.rpartition(":")
    if not colon or "/" in model or verb not in ("predict", "explain"):
        return None
    return TorchServeTarget(f"/v1/models/{{model}}:{verb}", model, explain=str(verb == "explain"))


def _kserve_v2(rest: str) -> TorchServeTarget | None:
    middle, _, verb = rest.rpartition("/")
    model, slash, rest = middle.partition("/")
    version = rest[len(_VERSIONS) :] if rest.startswith(_VERSIONS) else ""
    if verb not in ("infer", "explain") or not model or (slash and not version) or "/" in version:
        return None
    names = "{model}/versions/{version}" if slash else "{model}"
    return TorchServeTarget(f"{_KSERVE_V2}{names}/{verb}", model, version, explain=str(verb == "explain"), is_v2=True)


def _named_before(first: str, rest: str) -> TorchServeTarget | None:
    """`/models/{model}/invoke` of SageMaker, and the oldest paths, `/{model}[/{version}]/predict`."""
    version, _, verb = rest.rpartition("/")
    if verb == "invoke" and first == "models" and version and "/" not in version:
        return TorchServeTarget("/models/{model}/invoke", version, has_fields=True)
    if verb != "predict" or "/" in version or not first or first == "ui":
        return None
    route = "/{model}/{version}/predict" if version else "/{model}/predict"
    return TorchServeTarget(route, first, version, has_fields=True)


def is_management(path: str) -> bool:
    """Whether the path is one of TorchServe's other routes, which are answered elsewhere."""
    return path[1:].partition("/")[0] in _MANAGEMENT
