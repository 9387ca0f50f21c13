"""Keeps what takes long to make from a model (engines, quantised copies), under a name made of everything it depends on."""

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
    """The GPU that an engine is built for. Another GPU refuses the engine, or runs it slowly."""

    name: str
    compute_capability: str
    driver: str


def engine_key(
    model_sha256: str, *, runtime: str, gpu: GpuTarget | None, precision: str, profiles: Any = (), options: Mapping[str, Any]
) -> str:
    """The file name for what is made from a model; it changes with each argument. `runtime` contains the library's version."""
    device = [gpu.name, gpu.compute_capability, gpu.driver] if gpu else []
    parts = [model_sha256, runtime, device, precision, profiles, dict(options)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:40]


def model_sha256(model: Path | bytes) -> str:
    """The digest of the model and of the files that hold its weights. Raises `HandlerLoadError` if one of them is missing."""
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    outside = onnx_file.read(model).files if kind_of(model) == ".onnx" else ()
    digest = hashlib.sha256()
    for path in (model, *(_beside(model, name) for name in outside)):
        # The length comes first: else bytes moved from one file to the next would leave the digest unchanged.
        digest.update(f"{_size(path, model)}:".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def _beside(model: Path, name: str) -> Path:
    """The file of weights that a model names. A name that leads out of the model's folder is refused."""
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
    """`cache_dir` (relative to `base`) if it is set, else penstock/engines in the user's cache folder."""
    if cache_dir:
        return base / Path(cache_dir).expanduser()
    home = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "~")).expanduser() / ".cache")
    return home / "penstock" / "engines"


@dataclass(frozen=True, slots=True)
class EngineCache:
    """Files `KEY.SUFFIX`; each ends with the SHA-256 of its content. Any file may be deleted at any time."""

    folder: Path

    def obtain(self, name: str, make: Callable[[], bytes]) -> bytes:
        """The content of `name`; if there is none, `make` makes it and it is stored.

        One of several processes makes it while the others wait. A damaged file is made again. Raises `HandlerLoadError` if the
        folder cannot be written.
        """
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
        """Hold the lock that excludes all other processes on this machine. The lock ends with its process."""
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
        # The file is written under another name and then renamed, so that no reader sees half of it.
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
