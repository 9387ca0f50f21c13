"""Listening sockets: bound, and closed without resetting connections in the kernel's accept queue."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from collections.abc import Sequence

import structlog

from penstock.errors import ConfigError
from penstock.settings.gateway import GatewaySettings

log = structlog.get_logger(__name__)

# The time for handshakes that began before new connections were turned away.
HANDSHAKE_S = 0.1
# Constants of Linux that Python does not name.
_SO_ATTACH_FILTER = 26
# The offset of the accept queue's length in the kernel's `tcp_info` of a listening socket.
_UNACCEPTED = struct.Struct("24xI")
# A classic BPF program over a TCP segment: it drops a segment with SYN and keeps every other one.
_DROP_SYN = b"".join(
    struct.pack("HBBI", *step)
    for step in (
        (0x30, 0, 0, 13),  # load the byte with the flags
        (0x45, 0, 1, 0x02),  # SYN is set: continue, else skip one step
        (0x06, 0, 0, 0),  # keep 0 bytes
        (0x06, 0, 0, 0xFFFF_FFFF),  # keep all
    )
)


def bind(host: str, port: int, *, shared: bool, setting: str = "gateway.port") -> socket.socket:
    """Raises `ConfigError`, which names the setting, if the address cannot be bound. `shared`: siblings may bind it too."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint=f"Choose another with {setting} (PENSTOCK_{setting.replace('.', '__').upper()}).",
        ) from error
    return listener


def bind_aside(table: GatewaySettings) -> socket.socket | None:
    """The socket of the private metrics port; None if the settings name no such port."""
    return (
        bind(table.metrics_host, table.metrics_port, shared=False, setting="gateway.metrics_port")
        if table.metrics_port
        else None
    )


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


# D57: docs/design/gateway.md
def turn_newcomers_away(listeners: Sequence[socket.socket]) -> bool:
    """Have the kernel drop new connections' first segments to listeners with a shared port; returns whether there are any.

    A client that gets no answer sends its first segment again after a second. By then these listeners are closed, and the
    segment reaches a sibling. Without siblings on the port, that second would be wasted.
    """
    shared = [one for one in listeners if one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)]
    if sys.platform == "linux":
        program = ctypes.create_string_buffer(_DROP_SYN)
        filter_of_all = struct.pack("HL", len(_DROP_SYN) // 8, ctypes.addressof(program))
        for listener in shared:
            try:
                listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_of_all)
            except OSError as error:
                # Some sandboxes have no filters. A connection that comes at the last moment may then be reset.
                log.warning("newcomers_not_turned_away", reason=str(error))
    return bool(shared)


def are_queued(listeners: Sequence[socket.socket]) -> bool:
    """Whether connections wait in the kernel to be accepted here. Closing their listener would reset them."""
    return sys.platform == "linux" and any(_unaccepted(listener) for listener in listeners)


def _unaccepted(listener: socket.socket) -> int:
    count: int = _UNACCEPTED.unpack_from(listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACCEPTED.size))[0]
    return count
