"""Decides which file of a source is the model, and which files are fetched with it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from penstock.handlers.runtimes.contract import KINDS
from penstock.settings.remote_sources import RemoteSource, code_fault, is_safe_path
from penstock.workers.fetch.origin import FetchFailed, RemoteFile

# What built-in tasks and handlers read beside a model: labels, tokenizers, vocabularies, configurations.
_BESIDE = frozenset({".json", ".txt", ".model", ".csv"})
_MOST_NAMED = 12


def model_file(source: RemoteSource, files: Sequence[RemoteFile], *, trust_remote_code: bool) -> str:
    """The path of the model: the one that the source names, else the only model file there.

    Raises `FetchFailed` that lists the candidates, and for a file that runs code and is not trusted.
    """
    chosen = _named(source, files) if not source.is_folder else _only(source, files)
    fault = code_fault(source, chosen, trust_remote_code=trust_remote_code)
    if fault:
        raise FetchFailed(fault)
    return chosen


def wanted(files: Sequence[RemoteFile], model: str) -> list[RemoteFile]:
    """The model, what begins with its name (weights beside an ONNX file), and small texts; of code, all that lies around it.

    Raises `FetchFailed` for a path that would leave the folder that the files are put into.
    """
    chosen = [file for file in files if model.endswith(".py") or file.path.startswith(model) or _is_text(file)]
    outside = [file.path for file in chosen if not is_safe_path(file.path)]
    if outside:
        raise FetchFailed(f"the source names the file {outside[0]!r}, which would lie outside its folder; nothing was fetched")
    return sorted(chosen, key=lambda file: file.path)


def _named(source: RemoteSource, files: Sequence[RemoteFile]) -> str:
    if any(file.path == source.file for file in files):
        return source.file
    raise FetchFailed(f"{source} does not exist; there {_listed([file.path for file in files])}")


def _only(source: RemoteSource, files: Sequence[RemoteFile]) -> str:
    models = [
        file.path for file in files if PurePosixPath(file.path).suffix.lower() in KINDS and file.path.startswith(source.file)
    ]
    if len(models) == 1:
        return models[0]
    if models:
        raise FetchFailed(f"{source} holds {len(models)} model files; name one at the end of the source: {_names(models)}")
    raise FetchFailed(f"{source} holds no model file ({', '.join(KINDS)}); there {_listed([file.path for file in files])}")


def _is_text(file: RemoteFile) -> bool:
    return PurePosixPath(file.path).suffix.lower() in _BESIDE


def _listed(paths: Sequence[str]) -> str:
    return f"are {_names(paths)}" if paths else "is no file at all"


def _names(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(sorted(paths)[:_MOST_NAMED]) + more
