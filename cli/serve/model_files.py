"""Checks the declared models before anything starts (D46): their files, without a library that runs them, and requirements.

A module of its own because it loads the handlers' package, which only commands that serve models need.
"""

from __future__ import annotations

from pathlib import Path

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.model_file import file_faults
from penstock.handlers.requirements import in_words, install_line, missing_packages
from penstock.handlers.runtimes.contract import is_model_file
from penstock.handlers.tasks.options import task_class
from penstock.model_spec import ModelSpec
from penstock.settings.remote_sources import is_remote
from penstock.settings.source_kinds import kind_of
from penstock.settings.tables import Settings
from penstock.workers.devices.assign import is_on_cpu


def model_file_faults(settings: Settings) -> list[str]:
    """`models.faces (version 2): ...`, one text per fault. Missing files are reported elsewhere."""
    here = [spec for spec in (_here(spec, settings) for spec in settings.specs()) if spec is not None]
    return [
        f"models.{spec.name} (version {spec.version}): {fault}"
        for spec in here
        if Path(spec.source).exists()
        for fault in _faults(spec, settings)
    ]


def _faults(spec: ModelSpec, settings: Settings) -> list[str]:
    if is_model_file(spec.source):
        return file_faults(Path(spec.source), _context(spec, settings), task=spec.task)
    kind = kind_of(spec.source)
    return [] if kind is None else kind.faults(spec)


def missing_requirements(settings: Settings) -> tuple[list[str], str]:
    """One fault per declared version whose `requirements` are not installed here, and the command that installs all of them."""
    faults: list[str] = []
    lacking: dict[str, str] = {}
    for spec in settings.specs():
        try:
            missing = missing_packages(spec.requirements)
        except HandlerLoadError as error:
            faults.append(f"models.{spec.name} (version {spec.version}): {error.message}")
            continue
        lacking |= missing
        if missing:
            faults.append(f"models.{spec.name} (version {spec.version}) needs {in_words(missing)}")
    return faults, install_line(lacking) if lacking else ""


def missing_of_sources(settings: Settings) -> tuple[list[str], str]:
    """One line per archive or similar source with own requirements that are neither installed here nor by its worker, and
    the command that installs all of them. Such a model is started anyway.
    """
    told: list[str] = []
    lacking: dict[str, str] = {}
    for spec in settings.specs():
        kind = kind_of(spec.source)
        if kind is None or not Path(spec.source).exists():
            continue
        try:
            missing = kind.missing_packages(spec)
        except HandlerLoadError as error:
            # Faults of the source itself are among the faults of the model files.
            told.append(f"models.{spec.name} (version {spec.version}): {error.message}")
            continue
        lacking |= missing
        if missing:
            told.append(f"models.{spec.name} (version {spec.version}): its {kind.name} needs {in_words(missing)}")
    return told, install_line(lacking) if lacking else ""


def not_here(settings: Settings) -> list[str]:
    """The remote sources of declared models that are not in this machine's cache."""
    return [spec.source.partition("?")[0] for spec in settings.specs() if _here(spec, settings) is None]


def _here(spec: ModelSpec, settings: Settings) -> ModelSpec | None:
    if not is_remote(spec.source):
        return spec
    from penstock.cli.serve.fetching import located_here

    return located_here(spec, settings)


def _context(spec: ModelSpec, settings: Settings) -> Context:
    """The context of a worker's child. Before a worker starts, only the kind of device is known."""
    own = task_class(spec.task).max_batch_size if spec.task else None
    unset = "max_batch_size" in settings.policy_left_open(spec)
    return Context(
        spec.name,
        spec.version,
        device="cpu" if is_on_cpu(spec) else "cuda:0",
        options=spec.options,
        folder=Path(spec.source).resolve().parent,
        runtime=spec.runtime,
        max_batch_size=own if unset and own else spec.policy.max_batch_size,
    )
