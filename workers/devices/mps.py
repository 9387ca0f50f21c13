"""NVIDIA's MPS: whether it is used here, and how its daemon wants a client to end.

A client killed in the middle of a kernel can leave others undefined. The order to end reaches the server first, which waits for
the client's kernels; SIGKILL follows.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
_SERVER = "nvidia-cuda-mps"
# The daemon answers at once. A child that hangs is to end all the same.
_ANSWERS_WITHIN_S = 5.0
_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT = "tmp/nvidia-mps"

Ask = Callable[[str], str]


def is_used(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the daemon's control pipe lies where its clients look for it."""
    folder = environment.get(_VARIABLE)
    return ((Path(folder) if folder else root / _DEFAULT) / "control").exists()


def end_client(pid: int, ask: Ask | None = None, root: Path = Path("/")) -> None:
    """Have each server end its work for this process. Does nothing if the daemon does not answer."""
    ask = ask or _ask
    for server in ask("get_server_list").split():
        if _is_server(server, root):
            ask(f"terminate_client {server} {pid}")


def _is_server(pid: str, root: Path) -> bool:
    """Whether this number names a server here. Of a daemon in another container the numbers mean other processes."""
    try:
        return (root / "proc" / pid / "comm").read_text().startswith(_SERVER[:15]) if pid.isdecimal() else False
    except OSError:
        return False


def _ask(order: str) -> str:
    try:
        done = subprocess.run(
            [CONTROL], input=f"{order}\n", capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
