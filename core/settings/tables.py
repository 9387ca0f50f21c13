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
from penstock.job import MODEL_NAME, BlobPlace
from penstock.logs import JobLines
from penstock.model_spec import (
    DEFAULT_VERSION,
    MAX_BATCH_SIZE,
    BatchPolicy,
    Limits,
    ModelInfo,
    ModelSpec,
    RuntimeOptions,
    bucket_fault,
)
from penstock.settings.faults import explain
from penstock.settings.keys import Keys, Table, access_rule
from penstock.settings.sources import Layer, absent_files, env_layer, file_layer, flag_layer, merge
from penstock.settings.store_url import store_url

KIB = 1024
MIB = 1024 * KIB


def _named(name: str) -> str:
    if not MODEL_NAME.fullmatch(name):
        raise ValueError("names are 1 to 64 letters, digits, '_', '.' or '-', and start with a letter or digit")
    return name


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"write an address or a network such as 10.0.0.0/8 ({error})") from None


Name = Annotated[str, AfterValidator(_named)]
Seconds = Annotated[float, Field(gt=0)]
Bytes = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Network = Annotated[str, AfterValidator(_network)]
# As browsers write it: without a path or a slash at the end. `*` is none, since it would open the API to every page.
Origin = Annotated[str, Field(pattern=r"^https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d{1,5})?$")]
Task = Literal["", "image-classification", "segmentation", "object-detection", "text-classification", "text-embedding"]


class StoreSettings(Table):
    """Where jobs are stored. Without `url`, `penstock up` starts its own server in `state_dir`. `url` may hold a password.

    With `blob_url`, large payloads are objects in S3, Google or Azure storage instead of files in `blob_dir`. The credentials
    come from the environment, and `blob_url` must not hold them. Uploads and large inputs leave `reserve_bytes` of a disk free.
    """

    url: Annotated[str, AfterValidator(store_url)] | None = Field(default=None, repr=False)
    state_dir: Path
    fsync: Literal["always", "everysec"] = "always"
    blob_dir: Path | None = None
    blob_url: str = Field(default="", pattern=r"^((s3|gs|az)://[^/@?#\s]+(/[^@?#\s]*)?|file:///[^?#\s]+)?$")
    files_dir: Path | None = None
    inline_input_bytes: Bytes = 32 * KIB
    inline_output_bytes: Bytes = 64 * KIB
    reserve_bytes: Bytes = 1024 * MIB


class GatewaySettings(Table):
    """`rate_per_s` and `burst` limit a gateway without keys (rate 0: no limit); with keys, each key has its own limits.

    `max_predictions` answer-now requests, `max_waits` long polls and event streams and `max_requests` of all others are open at
    once per process; one owner may have a quarter of each. `proxies` are networks whose addresses may open any number of the
    `max_connections`; callers on this machine may too. A gateway that stops serves for `drain_s` more while clients leave.
    `metrics_port` 0: metrics have no port of their own. `dashboard` None: the dashboard is served on loopback only.
    `root_path` is the path under which a proxy publishes this gateway. `cors_origins`: the origins of the web pages that may
    call the API from a browser.
    """

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8080, ge=0, le=65_535)
    processes: Count = 1
    max_requests: Count = 2_048
    max_predictions: Count = 2_048
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
    torchserve_metrics: bool = False
    dashboard: bool | None = None
    root_path: str = Field(default="", pattern=r"^(/[A-Za-z0-9_.~-]+)*$")
    cors_origins: tuple[Origin, ...] = ()


class WorkerSettings(Table):
    """Durations are in seconds. `metrics_port` 0: metrics have no port of their own. `model_dir` holds the versions that are
    loaded at run time. Profilers write to `profile_dir`, by default `profiles` in the state folder. Set `pinning` to none for
    workers that share cores, because each worker plans for all cores of the machine.
    """

    lease_s: Seconds = 15.0
    beat_s: Seconds = 4.0
    sweep_s: Seconds = 1.0
    grace_s: float = Field(default=30.0, ge=0)
    pinning: Literal["cores", "none"] = "cores"
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    model_dir: Path | None = None
    profile_dir: Path | None = None

    @model_validator(mode="after")
    def _two_beats_fit_a_lease(self) -> WorkerSettings:
        if self.beat_s * 2 > self.lease_s:
            raise ValueError(
                f"beat_s ({self.beat_s:g}) may be at most half of lease_s ({self.lease_s:g}): one beat may be lost"
            )
        return self


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


class VersionSettings(Table):
    """One version of a model and how it runs. A table under `versions` sets only what differs from the fields of the model."""

    source: str = ""
    max_batch_size: int = Field(default=BatchPolicy().max_batch_size, ge=1, le=MAX_BATCH_SIZE)
    max_wait_s: float = Field(default=BatchPolicy().max_wait_s, ge=0)
    workers: Count = 1
    threads: Count | None = None
    device: str = Field(default="cpu", min_length=1)
    workers_per_device: Count = 1
    placement: Literal["dedicated", "shared"] = "dedicated"
    device_memory_bytes: Count | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    task: Task = ""
    runtime: Literal["auto", "torch", "onnx", "tensorrt"] = "auto"
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = "off"
    quantize: Literal["off", "int8"] = "off"
    provider: Literal["auto", "cpu", "cuda", "tensorrt"] = "auto"
    channels_last: bool = False
    cuda_graphs: bool = False
    batch_buckets: tuple[Count, ...] = ()
    cache_dir: str = ""
    session: dict[str, Any] = Field(default_factory=dict)
    warm_up: bool = True
    profile: bool = False
    profile_every: Count = 100
    max_queue_depth: Count = Limits().max_queue_depth
    deadline_s: Seconds = Limits().deadline_s
    bulk_deadline_s: Seconds = Limits().bulk_deadline_s
    result_ttl_s: Seconds = Limits().result_ttl_s
    sync_result_ttl_s: Seconds = Limits().sync_result_ttl_s
    max_attempts: Count = Limits().max_attempts
    max_crashes: Count = Limits().max_crashes
    max_run_s: Seconds = Limits().max_run_s
    load_timeout_s: Seconds = Limits().load_timeout_s
    memory_limit_bytes: Count | None = None
    recycle_after_batches: Count | None = None


class ModelSettings(VersionSettings):
    """A model. Its own fields describe the version named `version`; `versions` holds further versions by name."""

    version: Name = DEFAULT_VERSION
    default_version: str | None = None
    versions: dict[Name, VersionSettings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _default_version_exists(self) -> ModelSettings:
        if self.default_version is not None and self.default_version not in self.tables():
            raise ValueError(f"default_version {self.default_version!r} is none of its versions {', '.join(self.tables())}")
        return self

    @model_validator(mode="after")
    def _batches_can_fill_the_buckets(self) -> ModelSettings:
        """Check the buckets only if the settings set `max_batch_size`; else the handler may set it, and loading checks them."""
        for version, table in self.tables().items():
            own = self.versions.get(version)
            said = self.model_fields_set | (own.model_fields_set if own else set())
            fault = bucket_fault(table["batch_buckets"], table["max_batch_size"]) if "max_batch_size" in said else ""
            if fault:
                raise ValueError(f"{fault} (version {version})" if self.versions else fault)
        return self

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the full table of each version; what a version leaves out comes from the fields of the model."""
        shared = {name: getattr(self, name) for name in VersionSettings.model_fields}
        own = {self.version: shared} if self.source or not self.versions else {}
        written = {
            version: {name: getattr(table, name) for name in table.model_fields_set} for version, table in self.versions.items()
        }
        return own | {version: shared | table for version, table in written.items()}

    @property
    def chosen_version(self) -> str:
        """The version that serves callers who name none: `default_version`, else that of the model's own fields, else the first
        of `versions`.
        """
        return self.default_version or next(iter(self.tables()))


class Settings(Table):
    """All settings of a process. Paths are absolute."""

    store: StoreSettings
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    runs: RunsSettings = Field(default_factory=RunsSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    models: dict[Name, ModelSettings] = Field(default_factory=dict)
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
        tree, origins = merge(default, from_file, from_env, flag_layer(flags or {}))
        faults = from_file.faults + from_env.faults + (absent_files(tree, origins) if need_files else [])
        return cls._checked(tree, origins, faults=faults, config=config)

    @classmethod
    def _checked(cls, tree: dict[str, Any], origins: dict[str, str], *, faults: list[str], config: Path | None) -> Settings:
        faults = faults + _missing_sources(tree)
        try:
            settings = cls.model_validate(tree)
        except ValidationError as invalid:
            faults += explain(invalid, cls, origins)
        if faults:
            raise ConfigError(f"{config or 'the settings'} cannot be used:", faults=faults)
        settings._origins = origins
        return settings

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

    def access_keys(self) -> list[Key]:
        return [table.key() for table in self.keys]

    def access_rule(self) -> str:
        """Describe who is served; raises `ConfigError` if a gateway would serve the network without keys."""
        return access_rule(self.gateway.host, self.keys)

    def specs(self) -> list[ModelSpec]:
        """Return one spec per model and version, in the order of the settings."""
        return [_spec(name, version, table) for name, model in self.models.items() for version, table in model.tables().items()]

    def added_spec(self, name: str, version: str, table: Mapping[str, Any]) -> ModelSpec:
        """Return the spec of a version that is added at run time; what `table` leaves out comes from the model. Raises
        `ConfigError`.
        """
        model = self.models.get(name)
        shared = {field: getattr(model, field) for field in VersionSettings.model_fields} if model else {}
        return _spec(name, version, checked_version(shared | dict(table)))

    def policy_left_open(self, spec: ModelSpec) -> frozenset[str]:
        """Return the fields of the batch policy that no source sets for this version; the handler may set these fields."""
        tables = (f"models.{spec.name}", f"models.{spec.name}.versions.{spec.version}")
        set_by = {field.name: {self.origin(f"{table}.{field.name}") for table in tables} for field in fields(BatchPolicy)}
        return frozenset(name for name, origins in set_by.items() if origins == {"default"})

    def model_infos(self) -> list[ModelInfo]:
        """Return what a gateway knows of each model before a worker reports; the limits are those of the chosen version."""
        return [_info(name, model) for name, model in self.models.items()]

    def origin(self, path: str) -> str:
        """Return where the value at a dotted path came from: `flag`, `env NAME`, the path of the file, or `default`."""
        return self._origins.get(path, "default")


_PLACE = ("workers", "threads", "device", "workers_per_device", "placement", "device_memory_bytes")


def _spec(name: str, version: str, table: Mapping[str, Any]) -> ModelSpec:
    return ModelSpec(
        name=name,
        version=version,
        policy=BatchPolicy(**{field.name: table[field.name] for field in fields(BatchPolicy)}),
        limits=Limits(**{field.name: table[field.name] for field in fields(Limits)}),
        runtime=RuntimeOptions(**{field.name: table[field.name] for field in fields(RuntimeOptions)}),
        **{key: table[key] for key in ("source", *_PLACE, "options", "task", "warm_up")},
        profile_every=table["profile_every"] if table["profile"] else None,
    )


def checked_version(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the full table of one version; raises `ConfigError` with every fault."""
    try:
        full = VersionSettings.model_validate(dict(table))
    except ValidationError as invalid:
        raise ConfigError("this version cannot be used:", faults=explain(invalid, VersionSettings, {})) from None
    return {name: getattr(full, name) for name in VersionSettings.model_fields}


def _info(name: str, model: ModelSettings) -> ModelInfo:
    specs = {version: _spec(name, version, table) for version, table in model.tables().items()}
    chosen = specs[model.chosen_version]
    return ModelInfo(name, model.chosen_version, chosen.policy, chosen.limits, versions=dict.fromkeys(specs))


def _missing_sources(tree: Mapping[str, Any]) -> list[str]:
    """Find models without a source. A validator of the table would be skipped as soon as another value of it is wrong."""
    faults = []
    models = tree.get("models")
    for name, table in models.items() if isinstance(models, dict) else ():
        if not isinstance(table, dict) or table.get("source"):
            continue
        versions = table.get("versions")
        tables = versions.items() if isinstance(versions, dict) else ()
        bare = [
            f"models.{name}.versions.{version}" for version, own in tables if isinstance(own, dict) and not own.get("source")
        ]
        bare = bare if tables else [f"models.{name}"]
        faults += [f'{path}.source: missing; name the model\'s code or file, as in source = "square.py"' for path in bare]
    return faults
