"""Names of drivers: which process on which machine, so that another one there can tell that it is gone."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.job_id import new_serial

_START_FIELD = 19  # of /proc/PID/stat behind the name, which may hold spaces: `starttime`, proc(5)


def driver_name() -> str:
    """Unique to one drive: machine, process, when that started, a serial."""
    return f"{os.uname().nodename}:{os.getpid()}:{_started(os.getpid())}:{new_serial()}"


def is_gone(driver: str) -> bool:
    """True if the driver's process was on this machine and is no more. Of other machines nobody here can tell."""
    host, _, rest = driver.partition(":")
    pid, _, rest = rest.partition(":")
    started = rest.partition(":")[0]
    if host != os.uname().nodename or not pid.isdecimal() or not Path("/proc/self/stat").exists():
        return False
    return _started(int(pid)) != started


def _started(pid: int) -> str:
    """In the kernel's ticks since its start; empty for a process that is not there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[_START_FIELD]
