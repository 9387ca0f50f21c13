"""The settings of TorchServe's surface: its routes beside our own, its management, its metric names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from penstock.settings.keys import Table
from penstock.settings.models import Count, Seconds

_MOST_PATTERN_CHARS = 1_000
# What would silently do nothing without the routes.
_OF_THE_ROUTES = ("management_port", "model_api", "grpc_inference_port", "grpc_management_port", "key_path")
Port = Annotated[int, Field(ge=0, le=65_535)]


def _pattern(text: str) -> str:
    if len(text) > _MOST_PATTERN_CHARS:
        raise ValueError(f"a pattern has at most {_MOST_PATTERN_CHARS} characters, this one has {len(text)}")
    if "," in text:
        raise ValueError(f"{text[:80]!r} has a comma, which separates patterns in the environment")
    try:
        re.compile(text)
    except re.error as fault:
        raise ValueError(
            f"{text[:80]!r} is not a regular expression ({fault}); write for instance https://models\\.example\\.com/.*"
        ) from None
    return text


class TorchServeSettings(Table):
    """With `enabled`, a gateway also answers TorchServe's routes, for every model. `metrics`: whether `/metrics` has
    TorchServe's names too, with or without the routes, and `access_log`: whether each answer writes the lines of its front end.

    Management is served at `management_host` and `management_port`; port 0: at the address of the gateway. Models may be
    registered and unregistered there only with `model_api`: from `model_store`, a folder with archives, and from URLs that one
    of the regular expressions `allowed_urls` matches as a whole: at most `max_archive_bytes`, within `download_timeout_s`.
    Unless the request or the archive says otherwise, such a model has the `default_...` settings: workers, seconds for a run
    and for a start, waiting jobs. `key_path`: a file into which the gateway writes the tokens that callers must send, each
    valid for `token_lifetime_s`; without one it asks for none beside its own keys.
    An answer on these routes has at most `max_response_bytes`; None: as many as the model gives. `grpc_inference_port` and
    `grpc_management_port`: where TorchServe's gRPC services are served, at the hosts of the two listeners; 0: nowhere.
    """

    enabled: bool = False
    management_host: str = Field(default="127.0.0.1", min_length=1)
    management_port: Port = 0
    model_store: Path | None = None
    model_api: bool = False
    allowed_urls: tuple[Annotated[str, AfterValidator(_pattern)], ...] = ()
    max_archive_bytes: Count = 4 * 1024**3
    download_timeout_s: Seconds = 600.0
    default_workers: int = Field(default=0, ge=0)
    default_response_timeout_s: Seconds = 120.0
    default_startup_timeout_s: Seconds = 120.0
    default_queue_depth: Count = 100
    key_path: Path | None = None
    token_lifetime_s: Seconds = 3_600.0
    max_response_bytes: Count | None = None
    grpc_inference_port: Port = 0
    grpc_management_port: Port = 0
    metrics: bool = False
    access_log: bool = False

    @model_validator(mode="after")
    def _is_enabled_where_something_needs_it(self) -> TorchServeSettings:
        idle = [name for name in _OF_THE_ROUTES if getattr(self, name)]
        if idle and not self.enabled:
            do = "does" if len(idle) == 1 else "do"
            raise ValueError(f"{' and '.join(idle)} {do} nothing while enabled is false; set torchserve.enabled = true")
        return self

    def has_port_beside(self, host: str, port: int) -> bool:
        """Whether management has an address of its own, other than that of the gateway."""
        return self.enabled and self.management_port != 0 and (self.management_host, self.management_port) != (host, port)
