"""A network of a page's own, where every port is free: pages name port 8080, and several pages run at once."""

from __future__ import annotations

import fcntl
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import gettempdir

# SIOCGIFFLAGS, SIOCSIFFLAGS and IFF_UP of Linux's <sys/ioctl.h> and <net/if.h>.
_READ_FLAGS, _WRITE_FLAGS, _UP = 0x8913, 0x8914, 1


@cache
def own_network() -> tuple[str, ...]:
    """Return the beginning of a command that runs in a network of its own; empty where this machine allows none."""
    for tried in (("unshare", "--net"), ("unshare", "--user", "--map-root-user", "--net")):
        try:
            if subprocess.run([*tried, "true"], capture_output=True, check=False).returncode == 0:
                return tried
        except FileNotFoundError:
            break
    return ()


def raise_loopback() -> None:
    """Switch the loopback interface on, which is off in a new network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        name, flags = struct.unpack("16sH", fcntl.ioctl(asked, _READ_FLAGS, struct.pack("16sH", b"lo", 0)))
        fcntl.ioctl(asked, _WRITE_FLAGS, struct.pack("16sH", name, flags | _UP))


@contextmanager
def its_turn() -> Iterator[None]:
    """Wait until no other page runs, where all of them share the machine's network."""
    if own_network():
        yield
        return
    with Path(gettempdir(), "penstock-blocks.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
