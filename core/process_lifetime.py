"""How a process of ours begins and ends: quickly, and not after the process that started it, however that one ended.

The kernel ends a process with its parent on Linux only. Elsewhere a process outlives a parent that was killed, and the parent's
own supervision has to do.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PARENT_VARIABLE = "PENSTOCK_DIE_WITH_PARENT"
_PR_SET_PDEATHSIG = 1
# The value for a starter that does not know which process the new one becomes a child of.
_ANY_PARENT = "1"


def die_with_parent(environment: Mapping[str, str] = os.environ) -> None:
    """End this process by SIGTERM when its parent dies, if the environment asks for it.

    The variable holds the parent's pid, because a parent that was killed while this process started has another's pid by now.
    """
    asked = environment.get(PARENT_VARIABLE)
    if asked:
        parent = os.getppid() if asked == _ANY_PARENT else int(asked)
        parent_binding(parent, death_signal=signal.SIGTERM, exit_code=0)()


def parent_binding(parent: int, *, death_signal: signal.Signals, exit_code: int) -> Callable[[], None]:
    """What a process calls to receive `death_signal` when `parent` dies; it exits with `exit_code` if `parent` is dead already.

    The call takes no lock, so that it is safe between fork and exec.
    """
    if sys.platform != "linux":
        return lambda: None
    # Imported here, because commands that bind themselves to no parent import this module too.
    import ctypes

    prctl, number = ctypes.CDLL(None, use_errno=True).prctl, int(death_signal)

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        # The parent may have died before the kernel had the request.
        if os.getppid() != parent:
            os._exit(exit_code)

    return bind


@contextmanager
def loading() -> Iterator[None]:
    """The garbage collector rests inside the block and never looks at what was loaded there: modules stay until the end.

    For a process that is ours alone, since all that exists when the block ends is exempt from every later collection.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def leave_at_once() -> None:
    """Keep the interpreter from looking for cycles on its way out, which it does several times over every module.

    A fifth of the CPU that a short process used went there. Exit handlers run as they always do.
    """
    atexit.register(gc.freeze)
