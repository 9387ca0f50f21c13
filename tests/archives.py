"""Archives as the tests need them: good ones, and such as nobody should unpack."""

from __future__ import annotations

import gzip
import io
import json
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

HANDLER = "def handle(data, context):\n    return None if data is None else [{'rows': len(data)} for _ in data]\n"
MODEL = {"modelName": "noop", "handler": "noop.py", "modelVersion": "1.0"}


def manifest(**model: object) -> str:
    """`MAR-INF/MANIFEST.json` with these keys of `model`; None takes one away."""
    kept = {key: value for key, value in {**MODEL, **model}.items() if value is not None}
    return json.dumps({"createdOn": "01/01/2026 00:00:00", "runtime": "python", "model": kept, "archiverVersion": "0.12.0"})


def files(*, config: str = "", extra: Mapping[str, str | bytes] | None = None, **model: object) -> dict[str, str | bytes]:
    """The files of a small archive. `config` becomes its model-config.yaml."""
    named = {"configFile": "model-config.yaml"} if config else {}
    found: dict[str, str | bytes] = {"MAR-INF/MANIFEST.json": manifest(**{**named, **model}), "noop.py": HANDLER}
    return found | ({"model-config.yaml": config} if config else {}) | dict(extra or {})


def mar(path: Path, content: Mapping[str, str | bytes] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (files() if content is None else content).items():
            archive.writestr(name, data)
    return path


def tgz(path: Path, content: Mapping[str, str | bytes] | None = None, *, root: str = "noop") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in (files() if content is None else content).items():
            put(archive, f"{root}/{name}" if root else name, data)
    return path


def folder(path: Path, content: Mapping[str, str | bytes] | None = None) -> Path:
    for name, data in (files() if content is None else content).items():
        place = path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def put(archive: tarfile.TarFile, name: str, data: str | bytes = b"", **fields: object) -> None:
    """Add a member with these fields of its header."""
    raw = data.encode() if isinstance(data, str) else data
    info = tarfile.TarInfo(name)
    info.size = len(raw)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(raw))


def zip_special(path: Path, name: str, mode: int) -> Path:
    """An archive in which one member is a link (`stat.S_IFLNK`) or a device."""
    mar(path)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = (mode | stat.S_IRUSR) << 16
        archive.writestr(info, "/etc/passwd")
    return path


def gzipped(path: Path, data: bytes) -> Path:
    path.write_bytes(gzip.compress(data))
    return path


def with_package(**model: str) -> dict[str, str | bytes]:
    """An archive that requires a package which it holds, and one that the worker has, which pip leaves alone."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as packed:
        about = "only_here-1.0.dist-info"
        packed.writestr("only_here.py", "VALUE = 7\n")
        packed.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: only-here\nVersion: 1.0\n")
        packed.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{about}/RECORD", "")
    name = "only_here-1.0-py3-none-any.whl"
    lines = f"--no-index\n./{name}\nmsgspec\n"
    return files(extra={"requirements.txt": lines, name: wheel.getvalue()}, **{"requirementsFile": "requirements.txt", **model})


def packed(export_path: Path, *arguments: str, folder: Path) -> None:
    """Run the stock `torch-model-archiver` in this folder."""
    command = [sys.executable, "-m", "model_archiver.model_packaging", *arguments, "--export-path", str(export_path)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
