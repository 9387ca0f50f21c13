"""What takes long to make from a model (engines, quantised copies) is made once and kept: named by all it depends on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.contract import kind_of
from penstock.handlers.runtimes.onnx import onnx_file

_CHUNK_BYTES = 1 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """What an engine is built for; one built for another is refused or slow."""

    name: str
    compute_capability: str
    driver: str


def engine_key(
    model_sha256: str, *, runtime: str, gpu: GpuTarget | None, precision: str, profiles: Any = (), options: Mapping[str, Any]
) -> str:
    """A file name for what is made from a model: another for any change of these. `runtime` names it with its version."""
    device = [gpu.name, gpu.compute_capability, gpu.driver] if gpu else []
    parts = [model_sha256, runtime, device, precision, profiles, dict(options)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:40]


def model_sha256(model: Path | bytes) -> str:
    """Of the model and of the files its weights lie in; raises `HandlerLoadError` when one of these is missing."""
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    outside = onnx_file.read(model).files if kind_of(model) == ".onnx" else ()
    digest = hashlib.sha256()
    for path in (model, *(_beside(model, name) for name in outside)):
        # The length first, so that bytes cannot wander from one file to the next unnoticed.
        digest.update(f"{_size(path, model)}:".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def _beside(model: Path, name: str) -> Path:
    """The file of weights a model names; never one outside its folder, whatever the model says."""
    path = (model.parent / name).resolve()
    if not path.is_relative_to(model.parent.resolve()):
        raise HandlerLoadError(
            f"{model.name} keeps weights in {name}, outside its own folder; export it again with both together"
        )
    return path


def _size(path: Path, model: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise HandlerLoadError(
            f"{model.name} keeps weights in {path.name}, which is not beside it; copy that file too"
        ) from error


def cache_folder(cache_dir: str, base: Path, env: Mapping[str, str]) -> Path:
    """`cache_dir` (relative to `base`), or else penstock/engines in the user's cache folder."""
    if cache_dir:
        return base / Path(cache_dir).expanduser()
    home = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "~")).expanduser() / ".cache")
    return home / "penstock" / "engines"


@dataclass(frozen=True, slots=True)
class EngineCache:
    """Files `KEY.SUFFIX`, each ending in the SHA-256 of what is before. Safe to delete at any time, whole or in part."""

    folder: Path

    def obtain(self, name: str, make: Callable[[], bytes]) -> bytes:
        """What is kept under `name`, or else what `make` returns, then kept. Of several processes one makes it, the others
        wait; a damaged file is made again. Raises `HandlerLoadError` when the folder cannot be written."""
        if (kept := self.kept(name)) is not None:
            return kept
        with self.locked(name):
            kept = self.kept(name)
            if kept is None:
                kept = make()
                self.keep(name, kept)
        return kept

    def subfolder(self, name: str) -> Path:
        """A folder in the cache for a library that keeps files of its own."""
        try:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error
        return self.folder / name

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Alone among all processes on this machine; a process that dies lets go."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / f"{name}.lock").open("wb")
        except OSError as error:
            raise self._unwritable(error) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def kept(self, name: str) -> bytes | None:
        try:
            data = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unwritable(error) from error
        body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        return body if hashlib.sha256(body).digest() == digest else None

    def keep(self, name: str, body: bytes) -> None:
        # Written aside and moved into place: nobody ever sees half of it.
        aside = self.folder / f"{name}.{os.getpid()}.tmp"
        try:
            with aside.open("wb") as file:
                file.write(body)
                file.write(hashlib.sha256(body).digest())
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self.folder / name)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> HandlerLoadError:
        return HandlerLoadError(
            f"the cache folder {self.folder} cannot be used: {error}; name one that can be written with cache_dir"
        )
