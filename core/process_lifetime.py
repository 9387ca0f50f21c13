"""A process that ends with the one that started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping

TOLD = "PENSTOCK_DIE_WITH_PARENT"
_PR_SET_PDEATHSIG = 1
# Said by whoever starts a process without knowing which process that will be the child of.
_WHOEVER = "1"


def die_with_parent(environment: Mapping[str, str] = os.environ) -> None:
    """Have the kernel send SIGTERM when the parent dies (Linux), if the environment asks for it; end now if it is dead already.

    It is told by pid: one that was killed while this process started cannot be asked for any more. Elsewhere than on Linux the
    parent's own supervision must do.
    """
    told = environment.get(TOLD)
    if not told or sys.platform != "linux":
        return
    parent = os.getppid() if told == _WHOEVER else int(told)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)
