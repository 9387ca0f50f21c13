"""The folder of an embedded server's data: it is locked by one process, readable by one user, on a disk that may run full."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import IO

from penstock.errors import ConfigError

_SOCKET_PATH_LIMIT = 100  # the kernel's own limit is 107 bytes on Linux, 103 on macOS
_PAGE_BYTES = 4096


def socket_in(folder: Path) -> Path:
    """The path of the server's socket: in the folder or, if that path is too long, in a private temporary folder."""
    path = folder / "valkey.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_LIMIT:
        return path
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}-{digest}" / "valkey.sock"


def locked(state_dir: Path) -> IO[str]:
    """Lock the folder. The kernel releases the lock when the process ends for whatever reason."""
    lock = (state_dir / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise ConfigError(
            f"{state_dir} is in use by another penstock (process {holder}); end that one, or choose another folder with "
            "PENSTOCK_STORE__STATE_DIR"
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def make_private(folder: Path) -> None:
    """Make sure that the folder belongs to this user: another user could guess its name and put a socket there."""
    folder.mkdir(exist_ok=True, mode=0o700)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise ConfigError(f"{folder} is not a folder of this user; remove it, or choose a shorter state folder")
    folder.chmod(0o700)


def is_full(folder: Path) -> bool:
    """Whether the disk has no room for another page of a file, or no room for another file."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < _PAGE_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
