"""The settings of models: one table per version, what a version leaves out, and the specs that workers load."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, create_model, model_validator

from penstock.access import ANY_HEADER, CREDENTIAL_HEADERS
from penstock.errors import ConfigError
from penstock.extension import lent_modules, submit_parameters
from penstock.job import MOST_PARTITIONS
from penstock.model_spec import (
    DEFAULT_VERSION,
    MAX_BATCH_SIZE,
    BatchPolicy,
    Limits,
    ModelInfo,
    ModelSpec,
    RuntimeOptions,
    bucket_fault,
    name_fault,
)
from penstock.outbound.urls import ANYWHERE, rule_fault
from penstock.settings.environment import PlainVariable, SecretVariable, VariableName
from penstock.settings.extension_tables import model_fields, version_fields
from penstock.settings.faults import explain
from penstock.settings.keys import Table, Whole
from penstock.settings.remote_sources import source_fault


def _named(name: str) -> str:
    if fault := name_fault(name):
        raise ValueError(fault)
    return name


Name = Annotated[str, AfterValidator(_named)]
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
# The code of a failure, or the name of an exception's class.
ErrorName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Task = Literal["", "image-classification", "segmentation", "object-detection", "text-classification", "text-embedding"]


def _as_lines(value: Any) -> Any:
    """The path of a requirements file as the line that stands for it."""
    return (f"-r {value}",) if isinstance(value, str) else value


def _requirement(line: str) -> str:
    if line.startswith("-r /"):
        return line
    # Imported here, because few models have requirements.
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        Requirement(line)
    except InvalidRequirement:
        raise ValueError(f'{line!r} is no requirement; write it as in "pillow>=10", or the path of one file as text') from None
    return line


# The names of our own query parameters; tests/unit/core/settings compares them with those that a gateway reads.
OWN_PARAMETERS = frozenset({"priority", "deadline_s", "delay_s", "not_before", "tags"})


def _header(name: str) -> str:
    if name.lower() in CREDENTIAL_HEADERS:
        raise ValueError(f"{name} carries credentials, which model code never gets")
    return name.lower()


def _named_or_all(names: tuple[str, ...]) -> tuple[str, ...]:
    if ANY_HEADER in names and len(names) > 1:
        raise ValueError(f"{ANY_HEADER!r} stands for every header but those with credentials; it stands alone")
    return names


def _parameter(name: str) -> str:
    if name in OWN_PARAMETERS or name in submit_parameters():
        raise ValueError(f"{name} is a query parameter of penstock itself")
    return name


def _as_rules(value: Any) -> Any:
    """True stands for every public host, false for none."""
    return value if not isinstance(value, bool) else (ANYWHERE,) if value else ()


def _url_rule(rule: str) -> str:
    fault = rule_fault(rule)
    if fault:
        raise ValueError(fault)
    return rule


UrlRules = Annotated[tuple[Annotated[str, AfterValidator(_url_rule)], ...], BeforeValidator(_as_rules)]
HeaderName = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,63}|\*)$"), AfterValidator(_header)]
Partitions = Annotated[int, Field(ge=1, le=MOST_PARTITIONS)]
HeaderNames = Annotated[tuple[HeaderName, ...], AfterValidator(_named_or_all)]
ParameterName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"), AfterValidator(_parameter)]
Requirements = Annotated[tuple[Annotated[str, AfterValidator(_requirement)], ...], BeforeValidator(_as_lines)]


class JobFields(Table):
    """The settings of jobs that a version has, and any model that an extension drives."""

    request_headers: HeaderNames = ()
    max_queue_depth: Count = Limits().max_queue_depth
    deadline_s: Seconds = Limits().deadline_s
    bulk_deadline_s: Seconds = Limits().bulk_deadline_s
    result_ttl_s: Seconds = Limits().result_ttl_s
    sync_result_ttl_s: Seconds = Limits().sync_result_ttl_s


class ServedFields(Table):
    """The settings that every served model has, whatever runs it. `partitions`: how many queues its jobs have."""

    version: Name = DEFAULT_VERSION
    partitions: Partitions = 1


class VersionSettings(JobFields):
    """One version of a model and how it runs. A table under `versions` sets only what differs from the fields of the model.
    Extensions add fields: `version_class`.
    """

    source: str = ""
    max_batch_size: int = Field(default=BatchPolicy().max_batch_size, ge=1, le=MAX_BATCH_SIZE)
    max_wait_s: float = Field(default=BatchPolicy().max_wait_s, ge=0)
    slots: Count = 1
    threads: Count | None = None
    device: str = Field(default="cpu", min_length=1)
    slots_per_device: Count = 1
    placement: Literal["dedicated", "shared"] = "dedicated"
    device_memory_bytes: Count | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    env: dict[VariableName, PlainVariable] = Field(default_factory=dict)
    secrets: dict[VariableName, SecretVariable] = Field(default_factory=dict)
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
    requirements: Requirements = ()
    trust_remote_code: bool = False
    query: tuple[ParameterName, ...] = ()
    keep_tracebacks: bool | None = None
    input_urls: UrlRules = ()
    input_urls_ca: str = ""
    profile: bool = False
    max_attempts: Count = Limits().max_attempts
    retry_on: tuple[ErrorName, ...] = ()
    retry_delay_s: Seconds = Limits().retry_delay_s
    max_crashes: Count = Limits().max_crashes
    max_run_s: Seconds = Limits().max_run_s
    max_stream_bytes: Count = Limits().max_stream_bytes
    load_timeout_s: Seconds = Limits().load_timeout_s
    memory_limit_bytes: Count | None = None
    recycle_after_batches: Count | None = None


@cache
def version_class() -> type[VersionSettings]:
    """The table of a version with the fields of the installed extensions."""
    return create_model("VersionSettings", __base__=(VersionSettings, *version_fields()))


class ModelSettings(VersionSettings, ServedFields):
    """A model. Its own fields describe the version named `version`; `versions` holds further versions by name. Extensions add
    fields: `model_class`.
    """

    model_config = ConfigDict(defer_build=True)
    default_version: str | None = None
    versions: dict[Name, Annotated[VersionSettings, Whole(version_class)]] = Field(default_factory=dict)

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

    @model_validator(mode="after")
    def _fields_of_extensions_fit(self) -> ModelSettings:
        for version, table in self.tables().items():
            own = self.versions.get(version)
            if fault := _fault(table, self.model_fields_set | (own.model_fields_set if own else set())):
                raise ValueError(f"{fault} (version {version})" if self.versions else fault)
        return self

    @model_validator(mode="after")
    def _authorities_are_for_urls(self) -> ModelSettings:
        if any(table["input_urls_ca"] and not table["input_urls"] for table in self.tables().values()):
            raise ValueError("input_urls_ca is for input_urls, which is not set: no URL is fetched without it")
        return self

    @model_validator(mode="after")
    def _sources_can_be_read(self) -> ModelSettings:
        for table in self.tables().values():
            fault = source_fault(table["source"], trust_remote_code=table["trust_remote_code"])
            if fault:
                raise ValueError(f"source: {fault}")
        return self

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the full table of each version; what a version leaves out comes from the fields of the model."""
        shared = {name: getattr(self, name) for name in version_class().model_fields}
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


@cache
def model_class() -> type[ModelSettings]:
    """The table of a model with the fields of the installed extensions."""
    return create_model("ModelSettings", __base__=(ModelSettings, *version_fields(), *model_fields()))


def _fault(table: Mapping[str, Any], said: Set[str]) -> str:
    """The first fault that an extension finds with its fields of one version."""
    return next((fault for fields in version_fields() if (fault := fields.fault(table, said))), "")


_PLACE = ("slots", "threads", "device", "slots_per_device", "placement", "device_memory_bytes")
_CODE = ("requirements", "trust_remote_code")
_REQUEST = ("request_headers", "query")
_GIVEN = (*_REQUEST, "input_urls", "input_urls_ca")


def spec_of(name: str, version: str, table: Mapping[str, Any], *, keeps_tracebacks: bool = False) -> ModelSpec:
    """`keeps_tracebacks`: if the table does not say so."""
    kept = table["keep_tracebacks"]
    return ModelSpec(
        name=name,
        version=version,
        policy=BatchPolicy(**{field.name: table[field.name] for field in fields(BatchPolicy)}),
        limits=Limits(**{field.name: table[field.name] for field in fields(Limits)}),
        runtime=RuntimeOptions(**{field.name: table[field.name] for field in fields(RuntimeOptions)}),
        **{key: table[key] for key in ("source", *_PLACE, *_CODE, *_GIVEN, "options", "env", "secrets", "task", "warm_up")},
        **{key: value for own in version_fields() for key, value in own.of_spec(table).items()},
        modules=lent_modules(),
        keep_tracebacks=keeps_tracebacks if kept is None else kept,
        profile_every=100 if table["profile"] else None,
    )


def refuse_local(table: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for what a table from HTTP may not hold: it is kept in the store, where every process reads
    it, and its author may not name files of the workers.
    """
    faults = [
        f"{name}: environment variables of a model can be set in the settings of its workers only"
        for name in ("env", "secrets")
        if table.get(name)
    ]
    if table.get("input_urls") or table.get("input_urls_ca"):
        faults.append("input_urls: which hosts the workers may reach is for the settings of the workers to say")
    faults += [f"{name}: set it in the settings, which gateways read too" for name in _REQUEST if table.get(name)]
    lines = table.get("requirements") or ()
    if isinstance(lines, str) or any(str(line).startswith("-") for line in lines):
        faults.append('requirements: write them as a list, ["pillow>=10"]; a file can be named in the settings of workers only')
    if faults:
        raise ConfigError("this version cannot be used:", faults=faults)


def checked_version(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the full table of one version; raises `ConfigError` with every fault."""
    try:
        full = version_class().model_validate(dict(table))
    except ValidationError as invalid:
        raise ConfigError("this version cannot be used:", faults=explain(invalid, version_class(), {})) from None
    checked = {name: getattr(full, name) for name in version_class().model_fields}
    # Whether one of its values was written for this version or comes from its model is not known here.
    if fault := _fault(checked, frozenset()):
        raise ConfigError("this version cannot be used:", faults=[fault])
    return checked


def info_of(name: str, model: ModelSettings) -> ModelInfo:
    specs = {version: spec_of(name, version, table) for version, table in model.tables().items()}
    chosen = specs[model.chosen_version]
    return ModelInfo(
        name,
        model.chosen_version,
        chosen.policy,
        chosen.limits,
        versions=dict.fromkeys(specs),
        request_headers=tuple(dict.fromkeys(name for spec in specs.values() for name in spec.request_headers)),
        query=tuple(dict.fromkeys(name for spec in specs.values() for name in spec.query)),
        partitions=model.partitions,
        held=model.partitions,
    )


def missing_sources(tree: Mapping[str, Any]) -> list[str]:
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
