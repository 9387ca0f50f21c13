"""The models that TorchServe would load at its start, as models of penstock.toml: archives are read, nothing is started."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import BadArchive, HandlerLoadError
from penstock.extensions.torchserve.archives.contents import ArchiveContents, archive_file, read_archive
from penstock.extensions.torchserve.archives.kinds import MANIFEST, archive_stem, is_archive_file
from penstock.extensions.torchserve.archives.model_settings import model_settings
from penstock.extensions.torchserve.archives.parity import Parity, SettingParity, not_plain
from penstock.extensions.torchserve.cli.server_settings import switch, whole
from penstock.handlers.requirements import in_words, install_line, missing_of_text
from penstock.model_spec import name_fault
from penstock.settings.remote_sources import is_remote

# Where management keeps what it downloads: those models are in the store's records, not in the list of the start.
_DOWNLOADS = "downloads"
MAY_INSTALL = "install_py_dep_per_model"
_OPTIONS = {"decode_input_request": switch, "limit_max_image_pixels": switch, MAY_INSTALL: switch}


@dataclass(frozen=True, slots=True)
class MachineSize:
    """The parts of this machine on which TorchServe's defaults depend."""

    cores: int
    gpus: int
    has_grpc: bool = True


@dataclass(frozen=True, slots=True)
class StartupModel:
    """One version of a model. `table` is what penstock.toml has to say of it beside its archive."""

    name: str
    version: str
    source: Path
    table: Mapping[str, Any]
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class StartupModels:
    models: Sequence[StartupModel] = ()
    report: Sequence[SettingParity] = ()


class _Refused(Exception):
    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why


@dataclass(slots=True)
class _Wanted:
    """A model of the list: its archive, and the name that the list gives it (empty: the archive's own)."""

    path: Path
    name: str = ""


@dataclass(slots=True)
class _Reading:
    properties: Mapping[str, str]
    machine: MachineSize
    # The option with the metrics that metrics.yaml declares.
    metrics: Mapping[str, Any]
    report: list[SettingParity] = field(default_factory=list)

    @property
    def gpus(self) -> int:
        """How many GPUs may be used: `number_of_gpu` bounds them."""
        limit = self.properties.get("number_of_gpu", "").strip()
        return min(self.machine.gpus, int(limit)) if limit.isdecimal() else self.machine.gpus

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """What is refused inside the block is in the report, and the others go on."""
        try:
            yield
        except _Refused as refused:
            self.report.append(SettingParity("model", refused.what, Parity.REFUSED, why=refused.why))


def startup_models(
    properties: Mapping[str, str], store: Path | None, machine: MachineSize, metrics: Mapping[str, Any]
) -> StartupModels:
    """`store` is the model store, `metrics` the option with what metrics.yaml declares. What cannot be used is refused in the
    report.
    """
    reading = _Reading(properties, machine, metrics)
    said = _said(reading)
    models: dict[tuple[str, str], StartupModel] = {}
    for file in _listed(properties.get("load_models", "").strip(), store):
        with reading.refusals():
            model = _model(_wanted(file, store), said, reading)
            _check_new(model, models)
            models[model.name, model.version] = model
    return StartupModels(list(models.values()), [*reading.report, *_server_wide(reading)])


def _listed(text: str, store: Path | None) -> list[str]:
    """`all`, or names of files in the store, each maybe behind `name=`."""
    if text.lower() in ("", "none"):
        return []
    if text.lower() == "all" and store and store.is_dir():
        return [path.name for path in sorted(store.iterdir()) if _is_model(path)]
    return [part.strip() for part in text.split(",") if part.strip()]


def _is_model(path: Path) -> bool:
    if path.name.startswith(".") or path.name == _DOWNLOADS:
        return False
    if path.suffix == ".war":
        return False
    return (path.is_file() and is_archive_file(path.name)) or (path / MANIFEST).is_file()


def _wanted(listed: str, store: Path | None) -> _Wanted:
    name, _, file = listed.rpartition("=") if not is_remote(listed.partition("=")[0]) else ("", "", listed)
    if is_remote(file):
        raise _Refused(
            file, "an address needs a checksum: fetch the file into the store, or name it with #sha256= in penstock.toml"
        )
    if store is None or not store.is_dir():
        raise _Refused(file, f"there is no model store{f' {store}' if store else ''}; name it with --model-store")
    path = store / file
    if not path.resolve().is_relative_to(store.resolve()):
        raise _Refused(file, "it lies outside the model store")
    # TorchServe takes the name of an archive without its ending too.
    archive = next((one for one in (path, path.with_name(f"{path.name}.mar")) if one.exists()), None)
    if archive is None:
        raise _Refused(file, f"there is no such file in {store}")
    return _Wanted(archive, name.strip())


def _model(wanted: _Wanted, said: Mapping[str, Any], reading: _Reading) -> StartupModel:
    contents, handler = _read(wanted.path, reading.properties.get("default_service_handler", "").strip())
    name = wanted.name or contents.manifest.name or archive_stem(wanted.path)
    if fault := name_fault(name):
        raise _Refused(name, fault)
    yaml = model_settings(contents.config)
    if yaml.refused:
        raise _Refused(name, "; ".join(yaml.refused))
    reading.report += [_of(name, one) for one in not_plain(yaml.report)]
    reading.report += _packages(wanted.path, contents, name, may_install=bool(_options(reading).get(MAY_INSTALL)))
    own = _below(_below(said, name), contents.manifest.version)
    table = {**_defaults(reading), **_of_models(own, name, reading)}
    # model-config.yaml overrides what config.properties says of models.
    kept = {key: value for key, value in table.items() if key not in yaml.values}
    options = {**_options(reading), **({"handler": handler} if handler else {})}
    kept = _on_devices(kept, yaml.values, reading) | ({"options": options} if options else {})
    return StartupModel(name, contents.manifest.version, wanted.path, kept, bool(own.get("defaultVersion")))


def _packages(path: Path, contents: ArchiveContents, name: str, *, may_install: bool) -> Iterator[SettingParity]:
    """TorchServe ignores an archive's requirements unless it may install them, so the report names missing ones."""
    file = contents.manifest.requirements_file
    if not file:
        return
    if may_install:
        yield SettingParity(f"{name}: requirementsFile", file, Parity.HONOURED, f"options.{MAY_INSTALL}")
        return
    try:
        lacking = missing_of_text(archive_file(path, contents, file).decode("utf-8", "replace"), f"{path.name}/{file}")
    except HandlerLoadError as error:
        yield SettingParity(f"{name}: requirementsFile", file, Parity.IGNORED, why=error.message)
        return
    why = f"missing here: {in_words(lacking)}; run: {install_line(lacking)}" if lacking else "all of them are installed"
    yield SettingParity(f"{name}: requirementsFile", file, Parity.IGNORED if lacking else Parity.HONOURED, why=why)


def _below(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def _read(path: Path, default_handler: str) -> tuple[ArchiveContents, str]:
    """The archive, and the handler of the server if the archive names none."""
    try:
        try:
            return read_archive(path), ""
        except BadArchive:
            archive = read_archive(path, handler=default_handler) if default_handler else None
            if archive is None or _below(archive.manifest.whole, "model").get("handler") not in (None, "", default_handler):
                raise
            return archive, default_handler
    except (BadArchive, OSError) as error:
        raise _Refused(path.name, error.message if isinstance(error, BadArchive) else str(error)) from error


def _of(name: str, one: SettingParity) -> SettingParity:
    return SettingParity(f"{name}: {one.key}", one.value, one.parity, one.ours, one.why)


# What config.properties says of all models, and of some.


def _said(reading: _Reading) -> Mapping[str, Any]:
    """`models`, by name and version; of a snapshot what it lists."""
    for key in ("models", "model_snapshot"):
        text = reading.properties.get(key, "").strip()
        if not text:
            continue
        try:
            parsed = json.loads(text)
        except ValueError as fault:
            reading.report.append(SettingParity(key, text, Parity.IGNORED, why=f"it is not valid JSON: {fault}"))
            continue
        models = parsed.get("models", parsed) if key == "model_snapshot" and isinstance(parsed, dict) else parsed
        if isinstance(models, dict):
            why = "" if reading.properties.get("load_models") else "load_models names no model, so none is loaded at the start"
            reading.report.append(SettingParity(key, text, Parity.HONOURED, why=why))
            return models
        reading.report.append(SettingParity(key, text, Parity.IGNORED, why="it must be an object of models by name"))
    return {}


def _defaults(reading: _Reading) -> dict[str, Any]:
    return {ours: value for key, ours in _DEFAULT_KEYS.items() if (value := _whole(reading, key))} | {
        "slots": _whole(reading, "default_workers_per_model") or reading.gpus or reading.machine.cores
    }


_DEFAULT_KEYS = {
    "default_response_timeout": "max_run_s",
    "default_startup_timeout": "load_timeout_s",
    "job_queue_size": "max_queue_depth",
}


def _of_models(own: Mapping[str, Any], name: str, reading: _Reading) -> dict[str, Any]:
    """One version's entry in `models`; the keys are those of model-config.yaml, and some that name the archive."""
    rest = {key: value for key, value in own.items() if key not in ("defaultVersion", "marName")}
    settings = model_settings(rest)
    reading.report += [_of(f"models.{name}", one) for one in not_plain(settings.report)]
    return dict(settings.values)


def _on_devices(table: dict[str, Any], yaml: Mapping[str, Any], reading: _Reading) -> dict[str, Any]:
    """TorchServe puts a model on GPUs if there are any, unless its YAML says otherwise; several processes may share one."""
    device = yaml.get("device") or ("cuda" if reading.gpus else "cpu")
    if device != "cuda" or not reading.gpus:
        return table | ({"device": "cpu"} if device == "cpu" and "device" not in yaml else {})
    workers = yaml.get("slots") or table.get("slots", 1)
    devices = min(workers, reading.gpus)
    return {**table, "device": "cuda", "slots": devices, "slots_per_device": -(-workers // devices)}


def _options(reading: _Reading) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, read in _OPTIONS.items():
        if key in reading.properties:
            options[key] = read(reading.properties[key].strip())
    envelope = reading.properties.get("service_envelope", "").strip()
    return {**options, **({"service_envelope": envelope} if envelope else {}), **reading.metrics}


def _whole(reading: _Reading, key: str) -> int | None:
    """0 is TorchServe's word for "as it comes"."""
    text = reading.properties.get(key, "").strip()
    try:
        return whole(text) if text not in ("", "0") else None
    except ValueError:
        return None


def _server_wide(reading: _Reading) -> Iterator[SettingParity]:
    """What became of the keys that concern every model."""
    for key, ours in {**_DEFAULT_KEYS, "default_workers_per_model": "slots"}.items():
        if key in reading.properties:
            value = reading.properties[key]
            number = _whole(reading, key)
            bad = number is None and value.strip() not in ("", "0")
            why = (
                "it must be a whole number"
                if bad
                else "of every model, unless its model-config.yaml or `models` says otherwise"
            )
            yield SettingParity(key, value, Parity.IGNORED if bad else Parity.HONOURED, "" if bad else ours, why)
    for key in (*_OPTIONS, "service_envelope", "default_service_handler"):
        if key in reading.properties:
            ours = "options.handler" if key == "default_service_handler" else f"options.{key}"
            yield SettingParity(key, reading.properties[key], Parity.HONOURED, ours, "of every model")
    if "number_of_gpu" in reading.properties:
        why = "models use at most this many GPUs, each model by itself"
        yield SettingParity("number_of_gpu", reading.properties["number_of_gpu"], Parity.HONOURED, "slots", why)
    if "load_models" in reading.properties:
        yield SettingParity("load_models", reading.properties["load_models"], Parity.HONOURED, "models")


def _check_new(model: StartupModel, models: Mapping[tuple[str, str], StartupModel]) -> None:
    """Each version of a model comes once, as in TorchServe: from the first archive that brings it."""
    if (model.name, model.version) in models:
        raise _Refused(model.source.name, f"version {model.version} of {model.name} comes from another archive already")
