"""The settings of TorchServe's surface: its routes beside our own, its management, its metric names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, RootModel, model_validator

from penstock.settings.extension_tables import ExtensionFields, ExtensionTable
from penstock.settings.keys import Credentials, Table, access_rule, local_url
from penstock.settings.models import Count, Name, Seconds

if TYPE_CHECKING:
    from penstock.settings.layers import Layer
    from penstock.settings.tables import Settings

_MOST_PATTERN_CHARS = 1_000
# Settings that would silently do nothing without the routes.
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


class TorchServeSettings(ExtensionTable, Table):
    """With `enabled`, a gateway also answers TorchServe's routes, for every model. `metrics`: whether `/metrics` has
    TorchServe's names too, with or without the routes, and `access_log`: whether each answer writes the lines of its front end.

    Management is served at `management_host` and `management_port`; port 0: at the address of the gateway. Models may be
    registered and unregistered there only with `model_api`: from `model_store`, a folder with archives, and from URLs that one
    of the regular expressions `allowed_urls` matches as a whole: at most `max_archive_bytes`.
    Unless the request or the archive says otherwise, such a model has the `default_...` settings: workers, seconds for a run
    and for a start, waiting jobs. `key_path`: a file into which the gateway writes the tokens that callers must send, each
    valid for `token_lifetime_s`; without one it asks for none beside its own keys.
    An answer on these routes has at most `max_response_bytes`; None: as many as the model gives. `grpc_inference_port` and
    `grpc_management_port`: where TorchServe's gRPC services are served, at the hosts of the two listeners; 0: nowhere.
    """

    gone: ClassVar = {"download_timeout_s": "it is 10 minutes"}
    enabled: bool = False
    management_host: str = Field(default="127.0.0.1", min_length=1)
    management_port: Port = 0
    model_store: Path | None = None
    model_api: bool = False
    allowed_urls: tuple[Annotated[str, AfterValidator(_pattern)], ...] = ()
    max_archive_bytes: Count = 4 * 1024**3
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

    def has_own_port(self, settings: Settings) -> bool:
        """Whether management has an address of its own. Where it has the gateway's, one listener serves both."""
        return self.has_port_beside(settings.gateway.host, settings.gateway.port)

    def management_access_rule(self, settings: Settings) -> str:
        """As `Settings.access_rule`, for the address of management."""
        return access_rule(self.management_host, settings.keys, beside=self.credentials(), setting="torchserve.management_host")

    def credentials(self) -> Credentials | None:
        return Credentials("TorchServe's tokens", self.key_path) if self.key_path is not None else None

    def addresses(self, settings: Settings, url: str) -> dict[str, str]:
        if not self.enabled:
            return {}
        own = local_url(self.management_host, self.management_port) if self.has_own_port(settings) else url
        return {"manage": f"{own}   (TorchServe's)"}


class RegisteredFields(ExtensionFields, Table):
    """`registered_from`: the URL that a version came from which management registered; nothing reads it but that."""

    registered_from: str = ""


class WorkflowSettings(Table):
    """A workflow of TorchServe's, a .war file. Its models lie in `model_store`, by default that of `torchserve`, else beside
    it.
    """

    source: Path
    model_store: Path | None = None


class WorkflowTables(ExtensionTable, RootModel[dict[Name, WorkflowSettings]]):
    """The workflows by name."""

    root: dict[Name, WorkflowSettings] = Field(default_factory=dict)

    @classmethod
    def layer(cls, tree: Mapping[str, Any], *, need_files: bool) -> Layer:
        # Few deployments have workflows.
        from penstock.extensions.torchserve.settings.workflows import workflow_layer

        return workflow_layer(tree, need_files=need_files)
