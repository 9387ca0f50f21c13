"""All settings, checked as a whole. Flags override the environment, which overrides penstock.toml, which overrides defaults.

A process reads its settings once, at its start; the code below receives the values that it needs, never the `Settings` object.
Only the settings, the gateway and the item types of handlers import pydantic.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from penstock.access import Key
from penstock.errors import ConfigError
from penstock.extensions.pipelines.settings import (
    PipelineSettings,
    WorkflowSettings,
    added_pipeline,
    pipeline_faults,
    pipeline_info,
    pipeline_spec,
)
from penstock.extensions.torchserve.archives.kinds import is_archive
from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.extensions.webhooks.settings import WebhooksSettings
from penstock.job import BlobPlace
from penstock.logs import JobLines
from penstock.model_spec import (
    BatchPolicy,
    ModelInfo,
    ModelSpec,
)
from penstock.settings.faults import explain
from penstock.settings.keys import Keys, Table, access_rule, is_loopback
from penstock.settings.models import (
    Count,
    ModelSettings,
    Name,
    Seconds,
    VersionSettings,
    checked_version,
    info_of,
    missing_sources,
    refuse_local,
    spec_of,
)
from penstock.settings.sources import Layer, absent_files, env_layer, file_layer, flag_layer, merge, names_archives
from penstock.settings.store_url import StoreRequirement, celery_store_url, store_url
from penstock.settings.worker import WorkerSettings, fitting, unfit_patterns

KIB = 1024
MIB = 1024 * KIB


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"write an address or a network such as 10.0.0.0/8 ({error})") from None


_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"[^"\\\n]*"'
_MATCHERS = rf"^({_MATCHER}(,{_MATCHER})*)?$"
Bytes = Annotated[int, Field(ge=0)]
Network = Annotated[str, AfterValidator(_network)]
# As browsers write it: without a path or a slash at the end. `*` is none, since it would open the API to every page.
Origin = Annotated[str, Field(pattern=r"^https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d{1,5})?$")]


class StoreSettings(Table):
    """Where jobs are stored. Without `url`, `penstock up` starts its own server in `state_dir`. `url` may hold a password.

    With `blob_url`, large payloads are objects in S3, Google or Azure storage instead of files in `blob_dir`. The credentials
    come from the environment, and `blob_url` must not hold them. Uploads and large inputs leave `reserve_bytes` of a disk free.
    `require`: what the store at `url` must promise for a start: `none`, `no_eviction`, `log` (an append-only file) or `fsync`
    (`appendfsync always`); each includes those before it, and what is not required is a warning. `durability` `replicated`: a
    202 follows once a replica of that store has the job on its disk too. `celery_url`: another Redis for Celery's remote
    control and events, which cannot go over a cluster. `history` false: gateways and workers keep no history of their models.
    """

    url: Annotated[str, AfterValidator(store_url)] | None = Field(default=None, repr=False)
    celery_url: Annotated[str, AfterValidator(celery_store_url)] | None = Field(default=None, repr=False)
    state_dir: Path
    require: StoreRequirement = StoreRequirement.NO_EVICTION
    durability: Literal["local", "replicated"] = "local"
    fsync: Literal["always", "everysec"] = "always"
    blob_dir: Path | None = None
    blob_url: str = Field(default="", pattern=r"^((s3|gs|az)://[^/@?#\s]+(/[^@?#\s]*)?|file:///[^?#\s]+)?$")
    files_dir: Path | None = None
    inline_input_bytes: Bytes = 32 * KIB
    inline_output_bytes: Bytes = 64 * KIB
    reserve_bytes: Bytes = 1024 * MIB
    history: bool = True

    @model_validator(mode="after")
    def _replicas_belong_to_a_store_of_ones_own(self) -> StoreSettings:
        if self.durability == "replicated" and not self.url:
            raise ValueError('durability = "replicated" needs `url`: the embedded store has no replica')
        return self


class GatewaySettings(Table):
    """`rate_per_s` and `burst` limit a gateway without keys (rate 0: no limit); with keys, each key has its own limits.

    `max_predictions` answer-now requests, `max_streams` predictions answered with events, `max_waits` long polls, event
    streams and downloads, and `max_requests` of all others are open at once per process; one owner may have a quarter of each.
    `proxies` are networks whose addresses may open any number of the `max_connections`; callers on this machine may too. A
    gateway that stops serves for `drain_s` more while clients leave.
    `metrics_port` 0: metrics have no port of their own. `dashboard` None: the dashboard is served on loopback only.
    `root_path` is the path under which a proxy publishes this gateway. `cors_origins`: the origins of the web pages that may
    call the API from a browser. `prometheus_url`: a Prometheus that scrapes this deployment, for histories that the store does
    not keep; its series have `prometheus_labels`, as PromQL writes matchers.
    `grpc_port`: where `host` also serves the Open Inference Protocol over gRPC; 0: nowhere. With `grpc_certificate` and
    `grpc_key`, files in PEM, that port speaks TLS.
    """

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8080, ge=0, le=65_535)
    processes: Count = 1
    max_requests: Count = 2_048
    max_predictions: Count = 2_048
    max_streams: Count = 2_048
    max_waits: Count = 10_000
    max_connections: Count = 12_000
    max_connections_per_address: Count = 3_000
    proxies: tuple[Network, ...] = ()
    drain_s: float = Field(default=2.0, ge=0)
    max_json_bytes: Count = 4 * MIB
    max_raw_bytes: Count = 32 * MIB
    max_json_depth: Count = 64
    sync_timeout_s: Seconds = 60.0
    heartbeat_s: Seconds = 15.0
    head_timeout_s: Seconds = 10.0
    body_timeout_s: Seconds = 30.0
    idle_timeout_s: Seconds = 15.0
    rate_per_s: float = Field(default=0.0, ge=0)
    burst: Count = 200
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    dashboard: bool | None = None
    root_path: str = Field(default="", pattern=r"^(/[A-Za-z0-9_.~-]+)*$")
    cors_origins: tuple[Origin, ...] = ()
    prometheus_url: str = Field(default="", pattern=r"^(https?://[^/@?#\s]+(/[^@?#\s]*)?)?$")
    prometheus_labels: str = Field(default="", pattern=_MATCHERS)
    grpc_port: int = Field(default=0, ge=0, le=65_535)
    grpc_certificate: Path | None = None
    grpc_key: Path | None = None

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> GatewaySettings:
        if (self.grpc_certificate is None) != (self.grpc_key is None):
            raise ValueError("grpc_certificate and grpc_key are set together: files of a certificate and of its private key")
        return self


class ModelsCacheSettings(Table):
    """Where models that are fetched from elsewhere are kept: in `dir`, by default `models` in the state folder. Beyond
    `max_gib` the least recently used go that no process uses. `offline`: take what is there, and ask no network. A place that
    sends nothing for `stall_s` seconds is tried again. What pip installs for an archive may take `install_limit_s` seconds and
    `install_max_gib` on the disk.
    """

    dir: Path | None = None
    max_gib: float = Field(default=50.0, gt=0)
    offline: bool = False
    stall_s: Seconds = 30.0
    install_limit_s: Seconds = 900.0
    install_max_gib: float = Field(default=10.0, gt=0)

    @property
    def install_max_bytes(self) -> int:
        return int(self.install_max_gib * 1024 * MIB)

    @property
    def max_bytes(self) -> int:
        return int(self.max_gib * 1024 * MIB)


class RunsSettings(Table):
    """Runs over files. `roots`: folders in which a run that is created over HTTP may read files by path; without any, such a
    run reads uploaded files only. Uploaded files and files that a run produced are kept for `file_ttl_s`. One owner may have
    `max_owner_files` files of `max_owner_bytes` together, and `max_owner_runs` runs that have not ended.
    """

    roots: tuple[Path, ...] = ()
    max_file_bytes: Count = 200 * MIB
    max_batch_lines: Count = 50_000
    file_ttl_s: Seconds = 30 * 86_400.0
    max_owner_files: Count = 10_000
    max_owner_bytes: Count = 20 * 1024 * MIB
    max_owner_runs: Count = 100


class LogSettings(Table):
    """`jobs`: which state changes of jobs are logged: `all`, `problems` (changes that a healthy job never makes) or `off`."""

    jobs: JobLines = JobLines.PROBLEMS


class Settings(Table):
    """All settings of a process. Paths are absolute."""

    store: StoreSettings
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    runs: RunsSettings = Field(default_factory=RunsSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    models_cache: ModelsCacheSettings = Field(default_factory=ModelsCacheSettings)
    webhooks: WebhooksSettings = Field(default_factory=WebhooksSettings)
    torchserve: TorchServeSettings = Field(default_factory=TorchServeSettings)
    models: dict[Name, ModelSettings] = Field(default_factory=dict)
    pipelines: dict[Name, PipelineSettings] = Field(default_factory=dict)
    workflows: dict[Name, WorkflowSettings] = Field(default_factory=dict)
    keys: Keys = ()
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(
        cls,
        config: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        flags: Mapping[str, Any] | None = None,
        need_files: bool = False,
    ) -> Settings:
        """Read the settings from all sources; raises `ConfigError` with every fault found.

        `config` defaults to PENSTOCK_CONFIG, `env` to the environment of the process. `flags` maps dotted paths to values; None
        means that a flag is not given. `need_files`: a missing model file is a fault too. A gateway leaves it False, because a
        gateway may run on a machine without the model files.
        """
        env = os.environ if env is None else env
        config = config or (Path(env["PENSTOCK_CONFIG"]) if env.get("PENSTOCK_CONFIG") else None)
        config = config.absolute() if config else None
        from_file = file_layer(config)
        from_env = env_layer(env, merge(from_file)[0].get("models") or {})
        # The state folder is beside the file, so that the same penstock.toml finds its jobs from any working directory.
        default = Layer(config.parent if config else Path.cwd())
        default.put(("store", "state_dir"), ".penstock", "default")
        written = (from_file, from_env, flag_layer(flags or {}))
        tree, origins = merge(default, *written)
        below = [default]
        if tree.get("workflows"):
            # Few deployments have workflows of TorchServe's.
            from penstock.extensions.torchserve.settings.workflows import workflow_layer

            below.append(workflow_layer(tree, need_files=need_files))
            tree, origins = merge(*below, *written)
        if names_archives(tree):
            # Few models are archives, and all others do without this import.
            from penstock.extensions.torchserve.settings.archives import archive_layer

            tree, origins = merge(default, archive_layer(tree), *below[1:], *written)
        faults = [fault for layer in (*written, *below) for fault in layer.faults]
        faults += absent_files(tree, origins) if need_files else []
        return cls._checked(tree, origins, faults=faults, config=config)

    @classmethod
    def _checked(cls, tree: dict[str, Any], origins: dict[str, str], *, faults: list[str], config: Path | None) -> Settings:
        faults = faults + missing_sources(tree)
        try:
            settings = cls.model_validate(tree)
        except ValidationError as invalid:
            faults += explain(invalid, cls, origins)
        else:
            faults += pipeline_faults(settings.pipelines, settings.models)
            faults += unfit_patterns(settings.worker.models, settings.served_names)
        if faults:
            raise ConfigError(f"{config or 'the settings'} cannot be used:", faults=faults)
        settings._origins = origins
        return settings

    @property
    def job_store_url(self) -> str:
        """Raises `ConfigError` if no store is named."""
        if self.store.url is None:
            raise ConfigError("no job store is named", hint="Set PENSTOCK_REDIS_URL, or run `penstock up`, which starts one.")
        return self.store.url

    @property
    def blob_dir(self) -> Path:
        return self.store.blob_dir or self.store.state_dir / "blobs"

    @property
    def blob_place(self) -> BlobPlace:
        return BlobPlace(self.blob_dir, self.store.blob_url, self.store.state_dir / "blob-copies")

    @property
    def files_dir(self) -> Path:
        return self.store.files_dir or self.store.state_dir / "files"

    @property
    def profile_dir(self) -> Path:
        return self.worker.profile_dir or self.store.state_dir / "profiles"

    @property
    def models_dir(self) -> Path:
        return self.models_cache.dir or self.store.state_dir / "models"

    def access_keys(self) -> list[Key]:
        return [table.key() for table in self.keys]

    def access_rule(self) -> str:
        """Describe who is served; raises `ConfigError` if a gateway would serve the network without keys."""
        return access_rule(self.gateway.host, self.keys, tokens=self.torchserve.key_path)

    @property
    def has_dashboard(self) -> bool:
        """Whether the gateway serves the dashboard: as the setting says, by default on loopback only."""
        return is_loopback(self.gateway.host) if self.gateway.dashboard is None else self.gateway.dashboard

    @property
    def has_management_port(self) -> bool:
        """Whether TorchServe's management has an address of its own. Where it has the gateway's, one listener serves both."""
        return self.torchserve.has_port_beside(self.gateway.host, self.gateway.port)

    def management_access_rule(self) -> str:
        """As `access_rule`, for the address of TorchServe's management."""
        table = self.torchserve
        return access_rule(table.management_host, self.keys, tokens=table.key_path, setting="torchserve.management_host")

    @property
    def served_names(self) -> list[str]:
        """The models and pipelines, which callers name alike."""
        return [*self.models, *self.pipelines]

    def of_worker(self) -> Settings:
        """What a worker process serves of these settings."""
        if not self.worker.models:
            return self
        named = set(fitting(self.worker.models, self.served_names))
        models = {name: table for name, table in self.models.items() if name in named}
        pipelines = {name: table for name, table in self.pipelines.items() if name in named}
        return self.model_copy(update={"models": models, "pipelines": pipelines})

    def pipeline_specs(self) -> list[ModelSpec]:
        """Return one spec per pipeline."""
        return [pipeline_spec(name, table) for name, table in self.pipelines.items()]

    def specs(self) -> list[ModelSpec]:
        """Return one spec per model and version that runs code of its own, in the order of the settings."""
        return [
            spec_of(name, version, table, keeps_tracebacks=self.worker.keeps_tracebacks)
            for name, model in self.models.items()
            for version, table in model.tables().items()
        ]

    def added_spec(self, name: str, version: str, table: Mapping[str, Any]) -> ModelSpec:
        """Return the spec of a version that is added at run time; what `table` leaves out comes from the model. Raises
        `ConfigError`.
        """
        if "stages" in table:
            return added_pipeline(name, version, table)
        refuse_local(table)
        model = self.models.get(name)
        shared = {field: getattr(model, field) for field in VersionSettings.model_fields} if model else {}
        said = self._said_by_archive(name, table)
        # Options are several settings: those of the table stand over those of the archive, one by one.
        full = shared | said | dict(table) | ({"options": said["options"]} if "options" in said else {})
        return spec_of(name, version, checked_version(full), keeps_tracebacks=self.worker.keeps_tracebacks)

    def _said_by_archive(self, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """What the archive of a version that is added says of it, where nobody wrote it below the model's name."""
        source = table.get("source")
        if not isinstance(source, str) or not is_archive(source):
            return {}
        from penstock.extensions.torchserve.settings.archives import ARCHIVE, archive_table

        options = table.get("options")
        said = archive_table(source, options if isinstance(options, dict) else {}, self.models_dir)
        unwritten = ("default", ARCHIVE)
        own = {key: value for key, value in said.items() if key != "version"}
        return {key: value for key, value in own.items() if self.origin(f"models.{name}.{key}").startswith(unwritten)}

    def policy_left_open(self, spec: ModelSpec) -> frozenset[str]:
        """Return the fields of the batch policy that no source sets for this version; the handler may set these fields. An
        archive always says them.
        """
        if is_archive(spec.source):
            return frozenset()
        tables = (f"models.{spec.name}", f"models.{spec.name}.versions.{spec.version}")
        set_by = {field.name: {self.origin(f"{table}.{field.name}") for table in tables} for field in fields(BatchPolicy)}
        return frozenset(name for name, origins in set_by.items() if origins == {"default"})

    def model_infos(self) -> list[ModelInfo]:
        """Return what a gateway knows of each model before a worker reports; the limits are those of the chosen version."""
        pipelines = [pipeline_info(name, table) for name, table in self.pipelines.items()]
        return [info_of(name, model) for name, model in self.models.items()] + pipelines

    def origin(self, path: str) -> str:
        """Return where the value at a dotted path came from: `flag`, `env NAME`, the path of the file, or `default`."""
        return self._origins.get(path, "default")
