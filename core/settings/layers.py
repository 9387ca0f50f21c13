"""The sources of settings: a TOML file, the environment and flags, each read into values that remember their origin.

This module checks no value against the settings and raises nothing: what cannot be read becomes a fault beside the values, so
that one run shows all faults.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from penstock.settings.extension_tables import is_list, is_located, is_mapping, table_parts
from penstock.settings.remote_sources import is_remote
from penstock.settings.source_kinds import SourceKind, source_kinds

PREFIX = "PENSTOCK_"
NESTING = "__"
SECTIONS = ("store", "gateway", "worker", "runs", "log", "models_cache", "models", "keys")
# Short names that many deployments already set. If both are present, the first one wins.
URL_VARIABLES = ("PENSTOCK_REDIS_URL", "REDIS_URL")
_FILE_SUFFIX = "_FILE"
_FOLDERS = (
    ("store", "state_dir"),
    ("store", "blob_dir"),
    ("store", "files_dir"),
    ("worker", "model_dir"),
    ("models_cache", "dir"),
)
_FOLDER_LISTS = (("runs", "roots"),)
# In the environment the items of these lists are separated by commas.
_TEXT_LISTS = (
    ("gateway", "cors_origins"),
    ("gateway", "proxies"),
    ("worker", "models"),
)
# Tables of a model whose entries are environment variables of its child processes.
_VARIABLES = ("env", "secrets")
_OBJECT_NAME = re.compile(r":[A-Za-z_]\w*$")
# A source with one of these endings is a file even without a folder; any other source without a slash is a module.
_MODEL_FILES = (".py", ".onnx", ".pt2", ".pt", ".pth", ".ts", ".safetensors", ".plan", ".engine")


@dataclass(slots=True)
class Layer:
    """The values of one source by path (`("gateway", "port")`), the origin of each value in words, and faults of the source.

    Relative file paths among the values are resolved against `folder`.
    """

    folder: Path
    values: dict[tuple[str, ...], Any] = field(default_factory=dict)
    origins: dict[tuple[str, ...], str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def put(self, path: tuple[str, ...], value: Any, origin: str) -> None:
        for leaf, leaf_value in _leaves(path, value):
            self.values[leaf] = self._located(leaf, leaf_value)
            self.origins[leaf] = origin

    def _located(self, path: tuple[str, ...], value: Any) -> Any:
        if path in _FOLDER_LISTS and isinstance(value, (list, str)):
            value = [item for item in value.split(os.pathsep) if item] if isinstance(value, str) else value
            return [str(self.folder / Path(item).expanduser()) if isinstance(item, str) else item for item in value]
        if not isinstance(value, str) or not value:
            return value
        if path in _TEXT_LISTS or _is_of_extension(path, is_list):
            return [item.strip() for item in value.split(",") if item.strip()]
        if path in _FOLDERS or _is_of_extension(path, is_located):
            return str(self.folder / Path(value).expanduser())
        if _is_variable(path[:-1]) and path[-1] == "file":
            return str(self.folder / Path(value).expanduser())
        if _is_of_version(path, "requirements") or _is_of_version(path, "input_urls_ca"):
            return str(self.folder / Path(value).expanduser())
        return located_source(value, self.folder) if _is_of_version(path, "source") else value


def _is_of_extension(path: tuple[str, ...], is_so: Callable[[tuple[str, ...]], bool]) -> bool:
    """Whether the table is an extension's, and says so of the setting at `path`."""
    return path[0] not in SECTIONS and is_so(path)


def located_source(source: str, folder: Path) -> str:
    """Return `source` with an absolute file path; a module (`package.module:Name`) and an address stay unchanged."""
    location, name_part = _split(source)
    return f"{folder / Path(location).expanduser()}{name_part}" if _is_file(location) else source


def absent_files(tree: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    """Write one sentence per missing file of a model in a merged tree. Modules are not looked for: a worker imports them."""
    faults = []
    models = tree.get("models")
    for path, value in _leaves(("models",), models) if isinstance(models, dict) else ():
        file = _file_of(path, value) if isinstance(value, str) else None
        if file is not None and not file.is_file() and not (file.is_dir() and _is_model(file, models, path)):
            name = ".".join(path)
            faults.append(f"{name}: {file}: {why_absent(file)} (from {origins.get(name, 'default')})")
    return faults


def _is_model(folder: Path, models: Any, path: tuple[str, ...]) -> bool:
    """Whether a folder is the source of a version, of an extension's kind."""
    if not _is_of_version(path, "source"):
        return False
    tables = [models[path[1]], *([models[path[1]]["versions"][path[3]]] if len(path) == 5 else [])]
    options = {key: value for table in tables for key, value in (table.get("options") or {}).items()}
    return any(kind.is_model(folder, options) for kind in source_kinds())


def kinds_in(tree: Mapping[str, Any]) -> list[SourceKind]:
    """The kinds of extensions' sources that models in a merged tree have."""
    models = tree.get("models")
    leaves = _leaves(("models",), models) if isinstance(models, dict) else ()
    named = [value for path, value in leaves if _is_of_version(path, "source") and isinstance(value, str)]
    return [kind for kind in source_kinds() if any(map(kind.fits, named))]


def _file_of(path: tuple[str, ...], value: str) -> Path | None:
    if _is_of_version(path, "requirements") or (value and _is_of_version(path, "input_urls_ca")):
        return Path(value)
    return source_file(value) if _is_of_version(path, "source") else None


def source_file(source: str) -> Path | None:
    """Return the file that a source names; None for a module, and for a model that lies elsewhere."""
    location, _ = _split(source)
    return Path(location) if _is_file(location) else None


def why_absent(path: Path) -> str:
    """Say why a file is missing: the path is a folder, its folder is missing, or only a file of a similar name exists."""
    if path.is_dir():
        return "is a folder; name a file in it"
    if not path.parent.is_dir():
        return f"no such folder {path.parent}"
    near = get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=1)
    return f"no such file; did you mean {near[0]}?" if near else "no such file"


def _is_of_version(path: tuple[str, ...], key: str) -> bool:
    """Whether the path is that of this key of a model or of a version."""
    own = len(path) == 3 or (len(path) == 5 and path[2] == "versions")
    return own and path[0] == "models" and path[-1] == key


def _is_variable(path: tuple[str, ...]) -> bool:
    """Whether the path is that of an environment variable of a model or of a version."""
    own = len(path) == 4 or (len(path) == 6 and path[2] == "versions")
    return own and path[0] == "models" and path[-2] in _VARIABLES


def _split(source: str) -> tuple[str, str]:
    """Split a source into its file or module and its `:Name` ("" if the source has none)."""
    name = _OBJECT_NAME.search(source)
    return (source[: name.start()], name.group()) if name else (source, "")


def _is_file(location: str) -> bool:
    if is_remote(location):
        return False
    # Metadata of packages is read only for a source that may be a module.
    return "/" in location or location.lower().endswith(_MODEL_FILES) or location.lower().endswith(_endings_of_kinds())


def _endings_of_kinds() -> tuple[str, ...]:
    return tuple(ending for kind in source_kinds() for ending in kind.endings)


def file_layer(config: Path | None) -> Layer:
    if config is None:
        return Layer(Path())
    layer = Layer(config.parent)
    try:
        tree = tomllib.loads(config.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        layer.faults.append(f"{config}: not valid TOML: {fault}")
    except OSError as fault:
        layer.faults.append(f"{config}: cannot be read: {fault.strerror}; give the path of an existing penstock.toml")
    else:
        layer.put((), tree, str(config))
    return layer


def flag_layer(flags: Mapping[str, Any]) -> Layer:
    """Read flags by dotted path (`{"gateway.port": 9000}`); None means that a flag is not given."""
    layer = Layer(Path.cwd())
    for path, value in flags.items():
        if value is not None:
            layer.put(tuple(path.split(".")), value, "flag")
    return layer


def env_layer(env: Mapping[str, str], declared: Mapping[str, Any]) -> Layer:
    """Read the PENSTOCK_* variables. `declared` are the models of the file, whose names variables match in any case."""
    layer = Layer(Path.cwd())
    values = _with_secrets_read(env, layer)
    for section in ("models", *table_parts()):
        text = values.get(f"{PREFIX}{section.upper()}", "")
        if text and (section == "models" or is_mapping(section)):
            _put_tables(layer, section, text)
    names = [*declared, *{path[1] for path in layer.values if len(path) > 1 and path[0] == "models"}]
    if values.get(f"{PREFIX}KEYS"):
        _put_keys(layer, values[f"{PREFIX}KEYS"])
    _put_store_url(layer, values)
    for name, text in values.items():
        if name.startswith(PREFIX) and text:
            _put_variable(layer, name, text, names)
    return layer


def merge(*layers: Layer) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge layers into one tree and the origin of each of its leaves by dotted path; later layers win."""
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for path, value in layer.values.items():
            _place(tree, path, value)
            origins[".".join(path)] = layer.origins[path]
    return tree, origins


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(value, dict) or (not value and path):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves((*path, str(key)), inner)


def _place(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        if not isinstance(tree.get(key), dict):
            tree[key] = {}
        tree = tree[key]
    tree[path[-1]] = value


def _with_secrets_read(env: Mapping[str, str], layer: Layer) -> dict[str, str]:
    """Give `PENSTOCK_X` the content of the file in `PENSTOCK_X_FILE`, because container platforms mount secrets as files."""
    values = dict(env)
    for name, location in env.items():
        target = name.removesuffix(_FILE_SUFFIX)
        if target == name or not location or not name.startswith(PREFIX):
            continue
        values.pop(name)
        if env.get(target):
            layer.faults.append(f"{name}: {target} is set too; keep one of them")
            continue
        try:
            values[target] = Path(location).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as fault:
            layer.faults.append(f"{name}: {location} cannot be read: {fault}")
    return values


def _put_tables(layer: Layer, section: str, text: str) -> None:
    """Read tables by the names that users chose."""
    variable = f"{PREFIX}{section.upper()}"
    try:
        tables = json.loads(text)
    except ValueError as fault:
        layer.faults.append(f"{variable}: not valid JSON: {fault}")
        return
    if isinstance(tables, dict):
        layer.put((section,), tables, f"env {variable}")
    else:
        layer.faults.append(f"{variable}: must be a JSON object of {section} by name, not {type(tables).__name__}")


def _put_keys(layer: Layer, text: str) -> None:
    """Read tables as `penstock keys new --toml` prints them, usually through PENSTOCK_KEYS_FILE. No fault repeats the text."""
    variable = f"{PREFIX}KEYS"
    try:
        keys = tomllib.loads(text).get("keys")
    except tomllib.TOMLDecodeError:
        keys = None
    if isinstance(keys, list):
        layer.put(("keys",), keys, f"env {variable}")
    else:
        layer.faults.append(f"{variable}: must hold [[keys]] tables in TOML, as `penstock keys new NAME --toml` prints them")


def _put_store_url(layer: Layer, values: Mapping[str, str]) -> None:
    for name in URL_VARIABLES:
        if values.get(name):
            layer.put(("store", "url"), values[name], f"env {name}")
            return


def _put_variable(layer: Layer, name: str, text: str, models: list[str]) -> None:
    first, *rest = name.removeprefix(PREFIX).lower().split(NESTING)
    if not rest:
        # Other programs and other parts of penstock also use this prefix, so only a likely misspelling is a fault.
        section = next((known for known in (*SECTIONS, *table_parts()) if first.startswith(f"{known}_")), None)
        if section:
            meant = f"{PREFIX}{section}{NESTING}{first.removeprefix(section + '_')}".upper()
            layer.faults.append(f"{name}: is not a setting; sections are set off by two underscores: {meant}")
        return
    path = (first, *rest)
    if first == "models":
        path = (first, _declared_name(name, models), *rest[1:])
        # Names of settings are in lower case, those of environment variables in upper case.
        path = (*path[:-1], path[-1].upper()) if _is_variable(path) else path
    layer.put(path, _decoded(path, text), f"env {name}")


def _declared_name(variable: str, models: list[str]) -> str:
    """Find the model that a variable means. Variables cannot hold dashes or dots, so these and the case are ignored."""
    written = variable.removeprefix(PREFIX).split(NESTING)[1]
    return next((known for known in models if _plain(known) == _plain(written)), written.lower())


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _decoded(path: tuple[str, ...], text: str) -> Any:
    """Decode a variable. Options belong to the handler and have no known type: valid JSON is decoded, the rest is text."""
    if "options" not in path and not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
