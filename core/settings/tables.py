"""All settings, checked as a whole. Flags override the environment, which overrides penstock.toml, which overrides defaults.

A process reads its settings once, at its start; the code below receives the values that it needs, never the `Settings` object.
Only the settings, the gateway and the item types of handlers import pydantic.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from penstock.access import Key
from penstock.errors import ConfigError
from penstock.extension import load_part
from penstock.job import BlobLocation
from penstock.logs import JobLines
from penstock.model_spec import (
    BatchPolicy,
    ModelInfo,
    ModelSpec,
)
from penstock.settings.extension_tables import ExtensionTable, checked_tables, driven_spec, table_parts, tables_in
from penstock.settings.faults import explain, take_unknown_models
from penstock.settings.gateway import GatewaySettings
from penstock.settings.keys import Credentials, Keys, Table, Whole, access_rule, is_loopback
from penstock.settings.layers import Layer, absent_files, env_layer, file_layer, flag_layer, kinds_in, merge
from penstock.settings.models import (
    Count,
    ModelSettings,
    Name,
    Seconds,
    checked_version,
    info_of,
    missing_sources,
    model_class,
    refuse_local,
    spec_of,
    version_class,
)
from penstock.settings.source_kinds import kind_of
from penstock.settings.store_url import StoreRequirement, celery_store_url, store_url
from penstock.settings.worker import WorkerSettings, fitting, unfit_patterns

KIB = 1024
MIB = 1024 * KIB


Bytes = Annotated[int, Field(ge=0)]


TableT = TypeVar("TableT", bound=ExtensionTable)


class StoreSettings(Table):
    """Where jobs are stored. Without `url`, `penstock up` starts its own server in `state_dir`. `url` may hold a password.

    With `blob_url`, large payloads are objects in S3, Google or Azure storage instead of files in `blob_dir`. The credentials
    come from the environment, and `blob_url` must not hold them. Uploads and large inputs leave `reserve_bytes` of a disk free.
    `require`: what the store at `url` must promise for a start: `none`, `no_eviction`, `log` (an append-only file) or `fsync`
    (`appendfsync always`); each includes those before it, and what is not required is a warning. `durability` `replicated`: a
    202 follows once a replica of that store has the job on its disk too. `celery_url`: another Redis for Celery's remote
    control and events, which cannot go over a cluster.
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

    @property
    def confirming(self) -> int | None:
        """How many replicas must have a write until it is safe; None: what is answered is on the one disk that counts."""
        if self.durability == "replicated":
            return 1
        return None if self.require is StoreRequirement.FSYNC else 0

    @model_validator(mode="after")
    def _replicas_belong_to_a_store_of_ones_own(self) -> StoreSettings:
        if self.durability == "replicated" and not self.url:
            raise ValueError('durability = "replicated" needs `url`: the embedded store has no replica')
        return self


class ModelsCacheSettings(Table):
    """Where models that are fetched from elsewhere are kept: in `dir`, by default `models` in the state folder. Beyond
    `max_bytes` the least recently used go that no process uses. `offline`: take what is there, and ask no network. What
    pip installs for an archive may take a fifth of `max_bytes`.
    """

    dir: Path | None = None
    max_bytes: int = Field(default=50 * 1024 * MIB, ge=1)
    offline: bool = False

    @property
    def install_max_bytes(self) -> int:
        return self.max_bytes // 5


class RunsSettings(Table):
    """Runs over files. `roots`: folders in which a run that is created over HTTP may read files by path; without any, such a
    run reads uploaded files only. Uploaded files and files that a run produced are kept for `file_ttl_s`. One owner may have
    10,000 files of `max_owner_bytes` together, and `max_owner_runs` runs that have not ended.
    """

    roots: tuple[Path, ...] = ()
    max_file_bytes: Count = 200 * MIB
    file_ttl_s: Seconds = 30 * 86_400.0
    max_owner_bytes: Count = 20 * 1024 * MIB
    max_owner_runs: Count = 100


class LogSettings(Table):
    """`jobs`: which state changes of jobs are logged: `all`, `problems` (changes that a healthy job never makes) or `off`."""

    jobs: JobLines = JobLines.PROBLEMS


class Settings(Table):
    """All settings of a process. Paths are absolute. The tables of extensions are beside the fields: `extension`."""

    # What extensions add to the tables of models is known at the first check.
    model_config = ConfigDict(defer_build=True)
    store: StoreSettings
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    runs: RunsSettings = Field(default_factory=RunsSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    models_cache: ModelsCacheSettings = Field(default_factory=ModelsCacheSettings)
    models: dict[Name, Annotated[ModelSettings, Whole(model_class)]] = Field(default_factory=dict)
    keys: Keys = ()
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _tables: dict[str, Any] = PrivateAttr(default_factory=dict)

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
        for kind in tables_in(tree).values():
            layer = kind.layer(tree, need_files=need_files)
            below += [layer] if layer is not None else []
        if len(below) > 1:
            tree, origins = merge(*below, *written)
        if kinds := kinds_in(tree):
            tree, origins = merge(default, *(kind.layer(tree) for kind in kinds), *below[1:], *written)
        faults = [fault for layer in (*written, *below) for fault in layer.faults]
        faults += absent_files(tree, origins) if need_files else []
        return cls._checked(tree, origins, faults=faults, config=config)

    @classmethod
    def _checked(cls, tree: dict[str, Any], origins: dict[str, str], *, faults: list[str], config: Path | None) -> Settings:
        faults = faults + take_unknown_models(tree, origins) + missing_sources(tree)
        tables, of_tables = checked_tables(tree, origins)
        try:
            settings = cls.model_validate({name: table for name, table in tree.items() if name not in table_parts()})
        except ValidationError as invalid:
            faults += explain(invalid, cls, origins, beside=list(table_parts()))
        else:
            settings._tables = tables
            faults += [fault for table in tables.values() for fault in table.faults(settings)] if not of_tables else []
            faults += unfit_patterns(settings.worker.models, settings.served_names)
        faults += of_tables
        if faults:
            # A fault of a variable or a flag is none of the file's.
            is_of_file = config and not all("(from " in fault.replace(f"(from {config})", "") for fault in faults)
            raise ConfigError(f"{config if is_of_file else 'the settings'} cannot be used:", faults=faults)
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
    def blob_disk(self) -> Path | None:
        """The folder whose disk payloads fill; None if they are objects elsewhere."""
        return None if self.store.blob_url else self.blob_dir

    @property
    def blob_location(self) -> BlobLocation:
        return BlobLocation(self.blob_dir, self.store.blob_url, self.store.state_dir / "blob-copies")

    @property
    def files_dir(self) -> Path:
        return self.store.files_dir or self.store.state_dir / "files"

    @property
    def profile_dir(self) -> Path:
        return self.store.state_dir / "profiles"

    @property
    def models_dir(self) -> Path:
        return self.models_cache.dir or self.store.state_dir / "models"

    def access_keys(self) -> list[Key]:
        return [table.key() for table in self.keys]

    def access_rule(self) -> str:
        """Describe who is served; raises `ConfigError` if a gateway would serve the network without keys."""
        return access_rule(self.gateway.host, self.keys, beside=self.credentials())

    def credentials(self) -> Credentials | None:
        """What callers may send beside API keys, by an extension's table."""
        return next((credentials for table in self._tables.values() if (credentials := table.credentials()) is not None), None)

    @property
    def has_dashboard(self) -> bool:
        """Whether the gateway serves the dashboard: as the setting says, by default on loopback only."""
        return is_loopback(self.gateway.host) if self.gateway.dashboard is None else self.gateway.dashboard

    def extension(self, kind: type[TableT]) -> TableT:
        """The table of an extension, by its class; with its defaults where no source has it."""
        own = next((table for table in self._tables.values() if isinstance(table, kind)), None)
        return kind() if own is None else own

    def addresses(self, url: str) -> dict[str, str]:
        """What extensions serve beside the gateway at `url`, by a word, for the lines of `penstock up`."""
        return {word: line for table in self._tables.values() for word, line in table.addresses(self, url).items()}

    def tree(self) -> dict[str, Any]:
        """Every setting as JSON has it, those of all installed extensions included."""
        tables = {name: self._tables.get(name) or load_part(part)() for name, part in table_parts().items()}
        return self.model_dump(mode="json") | {name: table.model_dump(mode="json") for name, table in tables.items()}

    @property
    def served_names(self) -> list[str]:
        """The models with code of their own, and those that an extension drives; callers name them alike."""
        return [*self.models, *(spec.name for spec in self.driven_specs())]

    def of_worker(self) -> Settings:
        """What a worker process serves of these settings."""
        if not self.worker.models:
            return self
        named = set(fitting(self.worker.models, self.served_names))
        models = {name: table for name, table in self.models.items() if name in named}
        own = self.model_copy(update={"models": models})
        own._tables = {name: table.only(named) for name, table in self._tables.items()}
        return own

    def driven_specs(self) -> list[ModelSpec]:
        """Return one spec per model without code of its own, which an extension drives."""
        return [spec for table in self._tables.values() for spec in table.specs()]

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
        if (driven := driven_spec(name, version, table)) is not None:
            return driven
        refuse_local(table)
        model = self.models.get(name)
        shared = {field: getattr(model, field) for field in version_class().model_fields} if model else {}
        said = self._said_by_source(name, table)
        # Options are several settings: those of the table stand over those of the source, one by one.
        full = shared | said | dict(table) | ({"options": said["options"]} if "options" in said else {})
        return spec_of(name, version, checked_version(full), keeps_tracebacks=self.worker.keeps_tracebacks)

    def _said_by_source(self, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """What a source such as an archive says of an added version, for settings that the model's own tables leave out."""
        source = table.get("source")
        kind = kind_of(source) if isinstance(source, str) else None
        if kind is None:
            return {}
        options = table.get("options")
        said = kind.settings(str(source), options if isinstance(options, dict) else {}, self.models_dir)
        unwritten = ("default", kind.origin)
        own = {key: value for key, value in said.items() if key != "version"}
        return {key: value for key, value in own.items() if self.origin(f"models.{name}.{key}").startswith(unwritten)}

    def policy_left_open(self, spec: ModelSpec) -> frozenset[str]:
        """Return the fields of the batch policy that no source sets for this version; the handler may set these fields."""
        if kind_of(spec.source) is not None:
            return frozenset()
        tables = (f"models.{spec.name}", f"models.{spec.name}.versions.{spec.version}")
        set_by = {field.name: {self.origin(f"{table}.{field.name}") for table in tables} for field in fields(BatchPolicy)}
        return frozenset(name for name, origins in set_by.items() if origins == {"default"})

    def model_infos(self) -> list[ModelInfo]:
        """Return what a gateway knows of each model before a worker reports; the limits are those of the chosen version."""
        driven = [info for table in self._tables.values() for info in table.infos()]
        return [info_of(name, model) for name, model in self.models.items()] + driven

    def origin(self, path: str) -> str:
        """Return where the value at a dotted path came from: `flag`, `env NAME`, the path of the file, or `default`."""
        return self._origins.get(path, "default")
