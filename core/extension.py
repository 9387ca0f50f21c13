"""What an extension declares: the modules of its parts, each loaded by the process that needs it (docs/design/extensions.md).

A part is named as `module:attribute`, so that a declaration imports none of its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "penstock.extensions"


class Panel(StrEnum):
    """The parts of `penstock --help`."""

    SERVE = "Serve"
    USE = "Use"
    HELP = "Set up and inspect"


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of `penstock`: its Typer application, and the line that the overview shows before it is loaded.

    `asks_gateway`: it finds its gateway by `--url`. `more`: verbs that extensions add to this one, which is a group.
    `options`: what adds options to it, or to one verb of it, by the name of that verb.
    """

    part: str
    help: str
    panel: str = ""
    asks_gateway: bool = False
    more: Mapping[str, Verb] = field(default_factory=dict)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Extension:
    """One capability. `name` is that of its folder and of its entry point in the group `penstock.extensions`.

    `verbs`: by their words, `mine`, or `models mine` for a verb of the group `models`.
    `settings`: the class of each table in penstock.toml. `version_settings`, `model_settings` and `key_settings`: classes whose
    fields join the table of each version, each model and each key. `source_kinds`: kinds of sources that it brings. `modules`:
    by the name that model code imports, what fills such a module in a child. `declared`: reads a Python file that a command
    names, and returns the models that it declares, or None.
    """

    name: str
    # The package and the folder of its Lua files, as package:folder (broker/store/library.py).
    functions: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    # By the words of a verb of the engine: a function with the options to add to it (cli/lazy.py).
    options: Mapping[str, str] = field(default_factory=dict)
    version_settings: str = ""
    model_settings: str = ""
    key_settings: str = ""
    source_kinds: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    declared: str = ""
    # By the `kind` in the records of such runs: a `RunKind` (runs/kinds.py).
    run_kinds: Mapping[str, str] = field(default_factory=dict)
    # By the name of a user of the store, `penstock-mine`: its rights, as a text of ACL rules.
    store_users: Mapping[str, str] = field(default_factory=dict)
    # Called with settings, a name and words of `penstock tune` for a name that is no model (cli/measure/tune.py).
    tune: str = ""
    # The titles of the codes of its errors; and what each of them means, an `Explanation` by its code.
    problems: Mapping[str, str] = field(default_factory=dict)
    problem_pages: str = ""
    # Called with the gateway's services; returns what the extension serves there, or None if it is off.
    gateway: str = ""
    # Called before `gateway`; returns what the extension adds to models and jobs there (gateway/jobs/extending.py).
    jobs: str = ""
    # By their names, the query parameters of submits that it reads, as OpenAPI has them.
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Called in each worker with what the worker lends; returns what the extension brings (workers/fleet/parts.py).
    worker: str = ""

    def parts(self) -> list[str]:
        tables = (self.version_settings, self.model_settings, self.key_settings)
        own = (self.functions, *tables, self.declared, self.tune, self.problem_pages, self.gateway, self.jobs, self.worker)
        verbs = [verb.part for verb in self.verbs.values()]
        named = (self.settings, self.options, self.modules, self.run_kinds, self.store_users)
        return [*verbs, *filter(None, own), *self.source_kinds, *(part for parts in named for part in parts.values())]

    def __post_init__(self) -> None:
        if wrong := [part for part in self.parts() if ":" not in part]:
            raise ConfigError(f"extension {self.name!r} names parts as module:attribute, and not {', '.join(wrong)}")
        if self.functions and not self.name.isidentifier():
            raise ConfigError(f"extension {self.name!r} has functions in Lua, where its name must be an identifier")


@dataclass(frozen=True, slots=True)
class DeclaredInFile:
    """What a Python file declares: sources of models by name, and tables of settings by the name of the extension's table."""

    models: dict[str, str]
    tables: dict[str, dict[str, Any]]


def declared_in(path: Path) -> DeclaredInFile | None:
    """What the file declares to the extension that reads it; None: it is the code of a model. Raises `ConfigError`."""
    parts = [extension.declared for extension in installed() if extension.declared]
    return next((declared for part in parts if (declared := load_part(part)(path)) is not None), None)


@cache
def installed() -> tuple[Extension, ...]:
    """The extensions of this environment, by name: ours and those that other packages bring. Raises `ConfigError`."""
    # Reading the metadata of all packages takes tens of milliseconds, which a model's process never pays.
    from importlib.metadata import entry_points

    from penstock.distribution import NAME

    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    names = [point.name for point in points]
    if missing := sorted(_ours() - set(names)):
        raise ConfigError(
            f"extensions of penstock have no entry point here: {', '.join(missing)}; {NAME} is only on the path, "
            "or was installed before they existed",
            hint=f"In a checkout: pip install -e . Elsewhere: pip install --force-reinstall --no-deps {NAME}",
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        packages = ", ".join(_package(point) for point in points if point.name in twice)
        raise ConfigError(f"two packages bring the extension {', '.join(twice)}: {packages}; uninstall one of them")
    return tuple(map(_declaration, points))


def _ours() -> set[str]:
    """The extensions that penstock itself has, by their folders."""
    from penstock import extensions

    return {path.parent.name for path in Path(extensions.__path__[0]).glob("*/__init__.py")}


def _declaration(point: EntryPoint) -> Extension:
    package = _package(point)
    try:
        extension = point.load()
    except Exception as error:
        why = error.message if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"the extension {point.name!r} of the package {package} cannot be imported from {point.value}: {why}",
            hint=f"Install a release of {package} that fits this penstock, or: pip uninstall {package}",
        ) from error
    if not isinstance(extension, Extension) or extension.name != point.name:
        raise ConfigError(f"{point.value} of the package {package} is not an Extension of the name {point.name!r}")
    return extension


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module


@cache
def submit_parameters() -> dict[str, str]:
    """By the name of each query parameter of submits that an extension reads: the extension's name."""
    return {parameter: extension.name for extension in installed() for parameter in extension.parameters}


def lent_modules() -> dict[str, str]:
    """What fills the modules that extensions lend to model code, by the name that the code imports."""
    return {name: part for extension in installed() for name, part in extension.modules.items()}


def load_part(part: str) -> Any:
    """Import what `module:attribute` names. Raises `ConfigError` if another package has it, and it cannot be imported."""
    module, _, attribute = part.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        # For one of our own extensions the command names the extra to install.
        if module.partition(".")[0] == "penstock" or isinstance(error, PenstockError):
            raise
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{part}, a part of an extension, cannot be imported: {why}") from error
