"""The process behind `tests/warm_process.py`: it imports modules once, and forks for each start that a test asks for.

`python warm_server.py SOCKET MODULE...` imports the modules and then obeys the socket. A forked process leaves the loop, and
does what `python -m` does from there on: arguments, folder, signals, exit code and the interpreter's end are those of a real
process. The server has one thread and runs no code of ours, so a process that is forked from it inherits nothing half done.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

# Enough for an environment and the arguments; the client sends each order as one message.
_ORDER_BYTES = 1 << 20
# Standard input, output and error of the new process, where its pid and its exit code go, and the servers that are lent to it.
_FDS = 8
_STREAMS = 3


def main(words: list[str]) -> None:
    # `python -m` has the folder of its call there, not that of this file.
    sys.path[0] = os.getcwd()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in words[1:]:
        import_module(name)
    gc.collect()
    gc.freeze()
    order = _serve(socket.socket(fileno=int(words[0])))
    if order is not None:
        _become(order)


def _serve(orders: socket.socket) -> dict[str, Any] | None:
    """Fork for each order until the client is gone. Return the order in the process that was forked for it."""
    watched = selectors.DefaultSelector()
    watched.register(orders, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            if key.fileobj is not orders:
                _report_end(watched, key)
                continue
            data, fds, _, _ = socket.recv_fds(orders, _ORDER_BYTES, _FDS)
            if not data:
                return None
            pid = os.fork()
            if pid == 0:
                # Now, and not when the collector finds it: its number would be that of another file by then.
                watched.close()
                return {**json.loads(data), "fds": [*fds[:_STREAMS], *fds[_STREAMS + 1 :]]}
            told = fds.pop(_STREAMS)
            os.write(told, b"%d\n" % pid)
            watched.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))
            for fd in fds:
                os.close(fd)


def _report_end(watched: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    pid, told = key.data
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(told, b"%d\n" % os.waitstatus_to_exitcode(status))
    watched.unregister(key.fileobj)
    os.close(key.fd)
    os.close(told)


def _become(order: dict[str, Any]) -> None:
    """Be the process that was ordered, and nothing of this one."""
    if order["session"]:
        os.setsid()
    held = max(map(int, os.listdir("/proc/self/fd"))) + 1
    # Out of the way first: the number that one gets may be that of another.
    for number, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD, held) for fd in order["fds"]]):
        os.dup2(fd, number, inheritable=number < _STREAMS)
    # All that this process held: the client learns of an end by the end of a file.
    os.closerange(len(order["fds"]), max(map(int, os.listdir("/proc/self/fd"))) + 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.path[0] = order["cwd"]
    sys.argv = ["-m", *order["arguments"]]
    for name in order["anew"]:
        sys.modules.pop(name, None)
    _arm()
    if order["lent"]:
        _borrow({module: _STREAMS + place for place, module in enumerate(order["lent"])})
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


def _arm() -> None:
    """Arm the faults of this environment, as `penstock.failpoints` does while it is loaded: here it was loaded before."""
    failpoints = sys.modules.get("penstock.failpoints")
    if failpoints is None:
        return
    former, armed = failpoints.failpoint, failpoints.armed(os.environ)
    for module in list(sys.modules.values()):
        if vars(module).get("failpoint") is former:
            vars(module)["failpoint"] = armed


def _borrow(lent: dict[str, int]) -> None:
    """Let the processes that this one supervises be forked from the servers behind these sockets, by module."""
    spec = spec_from_file_location("tests_warm_process", Path(__file__).with_name("warm_process.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = client = module_from_spec(spec)
    spec.loader.exec_module(client)
    client.supervise(lent)


if __name__ == "__main__":
    main(sys.argv[1:])
