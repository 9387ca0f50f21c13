"""The CPU time and memory that control groups of both versions grant this process, from its own group up to the root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Version 1 writes "no limit" as the largest page-aligned number, so that any number this large is no limit.
_NO_MEMORY_LIMIT_BYTES = 1 << 60


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The CPU time granted, in cores; None without a limit. The tightest group on the way up binds all below it."""
    quotas = [*map(_unified_quota, _unified(root)), *map(_legacy_quota, _legacy(root, "cpu"))]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """The memory that all processes of the tightest group may use together; None without a limit."""
    unified = [_whole(_text(folder / "memory.max")) for folder in _unified(root)]
    legacy = [_whole(_text(folder / "memory.limit_in_bytes")) for folder in _legacy(root, "memory")]
    limits = [limit for limit in (*unified, *legacy) if limit is not None and limit < _NO_MEMORY_LIMIT_BYTES]
    return min(limits, default=None)


def _unified_quota(folder: Path) -> float | None:
    limit, _, period = _text(folder / "cpu.max").partition(" ")
    return _share(limit, period)


def _legacy_quota(folder: Path) -> float | None:
    return _share(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _share(limit: str, period: str) -> float | None:
    granted, per = _whole(limit), _whole(period)
    return granted / per if granted and per else None


def _unified(root: Path) -> Iterator[Path]:
    mount = root / "sys/fs/cgroup"
    # A machine with both versions mounts version 2 beside the controllers of version 1.
    base = mount if (mount / "cgroup.controllers").exists() else mount / "unified"
    for controllers, group in _groups(root):
        if not controllers:
            yield from _upwards(base, group)


def _legacy(root: Path, controller: str) -> Iterator[Path]:
    for controllers, group in _groups(root):
        if controller in controllers:
            names = dict.fromkeys((",".join(controllers), controller))
            mounts = [root / "sys/fs/cgroup" / name for name in names]
            yield from _upwards(next((mount for mount in mounts if mount.is_dir()), mounts[0]), group)


def _groups(root: Path) -> Iterator[tuple[list[str], str]]:
    """Controllers and path of every group this process is in; version 2 names no controllers."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        yield [name for name in controllers.split(",") if name], group


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """The group's folder and all above it. In a container the path may be the host's, and only its root exists here."""
    folder = mount / group.strip("/")
    yield folder
    while folder != mount:
        folder = folder.parent
        yield folder


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""
