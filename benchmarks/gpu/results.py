"""The results of one device: read from its file, continued by the next call, written after every step."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.models.__main__ import RowResults
from benchmarks.models.rows import Row

_ROOT = Path(__file__).resolve().parents[2]
# In the order in which the parts run.
PARTS = ("tests", "memory", "rows")
_PACKAGES = ("broker", "cli", "client", "core", "extensions", "gateway", "handlers", "workers")


@dataclass(slots=True)
class GpuResults(RowResults):
    """`sources`: a digest of the code that the rows ran. `not_run`: the rows without any result."""

    device: dict[str, Any] = field(default_factory=dict)
    sources: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    tests: dict[str, Any] | None = None
    out_of_memory: dict[str, Any] | None = None
    not_run: list[str] = field(default_factory=list)

    @property
    def subject(self) -> tuple[Any, ...]:
        """What the figures in one file must have in common."""
        return self.device.get("name"), self.sources, self.machine.get("packages", {}).get("torch")

    @property
    def tests_passed(self) -> bool:
        """False if all tests were skipped."""
        return self.tests is not None and self.tests["exit_code"] == 0 and self.tests["passed"] > 0

    @property
    def memory_recovered(self) -> bool:
        return self.out_of_memory is not None and bool(self.out_of_memory["recovered"])

    def parts_due(self, asked: Collection[str]) -> list[str]:
        """The parts of `asked` without a passed result. The part `rows` is always due, because `due` decides row by row."""
        passed = {"tests": self.tests_passed, "memory": self.memory_recovered}
        return [part for part in PARTS if part in asked and not passed.get(part, False)]

    def due(self, rows: Iterable[Row], *, quick: bool) -> list[Row]:
        """The rows to measure: those that will be skipped first, those that failed before last. Figures of a quick run count
        only for a quick run."""
        measured = {row["name"] for row in self.rows if quick or not row["quick"]}
        left = (row for row in rows if row.name not in measured)
        return sorted(left, key=lambda row: (not row.lacking, row.name in self.failed))

    def unknown(self, rows: Iterable[Row]) -> list[str]:
        known = {*(row["name"] for row in self.rows), *self.skipped, *self.failed}
        return [row.name for row in rows if row.name not in known]

    def write(self, path: Path) -> None:
        """Writes under another name first, so that a process killed meanwhile leaves the previous file intact."""
        facts = asdict(self)
        content = {name: facts.pop(name) for name in ("device", "sources", "tests", "out_of_memory")} | facts
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
        part.replace(path)


def resume(path: Path, fresh: GpuResults) -> GpuResults:
    """The file's results if they are of the same device, sources and torch; otherwise `fresh`, and the file is set aside."""
    if not path.exists():
        return fresh
    old = _read(path)
    if old is None or old.subject != fresh.subject:
        path.replace(set_aside_path(path))
        return fresh
    return replace(old, device=fresh.device, machine=fresh.machine)


def set_aside_path(path: Path) -> Path:
    """The new name of a file that is not continued."""
    return path.with_suffix(".older.json")


def _read(path: Path) -> GpuResults | None:
    """None: the file has another format."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=GpuResults)
    except msgspec.DecodeError:
        return None


def sources_digest(root: Path = _ROOT) -> str:
    """A digest of the code that runs in a row, without `benchmarks/gpu`, which only chooses rows and records them. The commit
    would not do: a copied tree may have no history, and results are committed between two calls."""
    files = [file for package in _PACKAGES for kind in ("*.py", "*.lua") for file in (root / package).rglob(kind)]
    files += list((root / "benchmarks" / "models").glob("*.py"))
    files += [file for example in ("vision", "embeddings") for file in (root / "examples" / example).glob("*.py")]
    return digest(root, files)


def digest(root: Path, files: Sequence[Path]) -> str:
    whole = hashlib.sha256()
    for file in sorted(files):
        whole.update(f"{file.relative_to(root).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()
