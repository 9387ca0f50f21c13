"""The options of an archive: TorchServe's switches for a whole server, per model; and what of its YAML is refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, get_type_hints

from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.archives.model_settings import model_settings, refused_settings

_ENVELOPES = ("body", "json", "kserve", "kservev2")


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """`handler` overrides that of the manifest. `metrics`: the `model_metrics` of a metrics.yaml; `metrics_log`: write
    TorchServe's lines of metrics to the log. The two about packages are read where the archive is unpacked.
    """

    handler: str = ""
    service_envelope: str = ""
    decode_input_request: bool = True
    limit_max_image_pixels: bool = True
    install_py_dep_per_model: bool = False
    use_venv: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    metrics_log: bool = False


def read_options(options: Mapping[str, Any]) -> ArchiveOptions:
    """Raises `HandlerLoadError` for an option that archives do not have, and for a value of another type."""
    kinds = get_type_hints(ArchiveOptions)
    known = [one.name for one in fields(ArchiveOptions)]
    for name, value in options.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise HandlerLoadError(f"an archive has no option {name!r}{meant} Its options are {', '.join(known)}")
        kind = dict if name == "metrics" else kinds[name]
        if not isinstance(value, kind):
            raise HandlerLoadError(f"the archive's option {name} must be {kind.__name__}, not {value!r:.80}")
    own = ArchiveOptions(**dict(options))
    if own.service_envelope not in ("", *_ENVELOPES):
        raise HandlerLoadError(
            f"there is no service_envelope {own.service_envelope!r:.80}; it is {', '.join(_ENVELOPES)}, or left out"
        )
    return own


def check_config(config: Mapping[str, Any]) -> None:
    """Raises `HandlerLoadError` with everything in a model-config.yaml that would change the handler and is not supported."""
    refused = model_settings(config).refused
    if refused:
        raise HandlerLoadError(refused_settings("the archive", refused))
