"""Hosts on one machine: network namespaces, each with an address and a link that can be cut, joined by a bridge of their own.

Processes of a host are started with its `within` before their command. A host shares files and clock with the others, so a test
removes its disk itself. Namespaces live as long as a process that waits in each for the end of the one that made them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO

from penstock.errors import PenstockError

# The range that is set aside for measurements between networks (RFC 2544), so no real address is taken.
_NETWORK = "198.18.{net}.{host}"
_NETS, _GATE = 250, 254
_INSIDE = "eth0"


@dataclass(frozen=True, slots=True)
class Host:
    """`within`: what stands before a command that runs there. `link`: what stands before `up` or `down` to set its link."""

    address: str = "127.0.0.1"
    within: tuple[str, ...] = ()
    link: tuple[str, ...] = ()

    def cut(self) -> None:
        """What this host sends, and what is sent to it, is lost from now on. Without a link of its own nothing happens."""
        self._set("down")

    def join(self) -> None:
        self._set("up")

    def _set(self, state: str) -> None:
        if self.link:
            subprocess.run([*self.link, state], check=True)


LOOPBACK = Host()


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """`gate`: this process's own place in the network. `what`: one line that says what the hosts are."""

    gate: Host
    hosts: list[Host] = field(default_factory=list)
    what: str = "network namespaces, one per host"

    @property
    def can_cut(self) -> bool:
        return bool(self.gate.link)


def why_no_network() -> str:
    """Empty if there can be hosts with links of their own."""
    if sys.platform != "linux":
        return f"{sys.platform} has no network namespaces"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    missing = [program for program in ("ip", "nsenter", "unshare") if shutil.which(program) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} on the path (Debian: iproute2, util-linux)"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return f"the kernel refuses network namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


@contextmanager
def host_network(count: int) -> Iterator[HostNetwork]:
    """So many hosts; where namespaces cannot be made they all are this machine's loopback, and `what` says why."""
    refused = why_no_network()
    if refused:
        yield HostNetwork(LOOPBACK, [LOOPBACK] * count, f"loopback, since {refused}")
        return
    with ExitStack() as opened:
        yield _built(count, opened)


def _built(count: int, opened: ExitStack) -> HostNetwork:
    net, switch = os.getpid() % _NETS, _namespace(opened)
    _ip(switch, "link", "add", "bridge", "type", "bridge")
    _ip(switch, "link", "set", "bridge", "up")
    outside = f"ps-{os.getpid()}"
    gate = Host(_NETWORK.format(net=net, host=_GATE), (), ("ip", "link", "set", outside))
    _wire(switch, os.getpid(), "gate", outside, gate.address)
    opened.callback(_ip, os.getpid(), "link", "delete", outside)
    hosts = []
    for number in range(1, count + 1):
        inside, address = _namespace(opened), _NETWORK.format(net=net, host=number)
        _ip(inside, "link", "set", "lo", "up")
        _wire(switch, inside, f"host-{number}", _INSIDE, address)
        hosts.append(Host(address, _within(inside), (*_within(switch), "ip", "link", "set", f"host-{number}")))
    return HostNetwork(gate, hosts)


def _wire(switch: int, inside: int, port: str, name: str, address: str) -> None:
    """A wire between the bridge, whose end is `port`, and the namespace of process `inside`, whose end is `name`."""
    _ip(switch, "link", "add", port, "type", "veth", "peer", "name", name, "netns", str(inside))
    _ip(switch, "link", "set", port, "master", "bridge", "up")
    _ip(inside, "address", "add", f"{address}/24", "dev", name)
    _ip(inside, "link", "set", name, "up")


def _namespace(opened: ExitStack) -> int:
    """The process that keeps a new namespace; it ends with its input, so with this process at the latest."""
    process = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    opened.callback(_end, process)
    if not _opened(process.stdout).readline():
        raise PenstockError("the kernel made no network namespace; its reason stands above")
    return process.pid


def _opened(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _end(process: subprocess.Popen[bytes]) -> None:
    with _opened(process.stdout), _opened(process.stdin):
        pass
    process.wait()


def _within(pid: int) -> tuple[str, ...]:
    return () if pid == os.getpid() else ("nsenter", f"--net=/proc/{pid}/ns/net")


def _ip(pid: int, *words: str) -> None:
    done = subprocess.run([*_within(pid), "ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PenstockError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")
