"""Several calls of a model at once, one thread each, where it would else have several threads for one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# Whoever sets one of these in the table `session` has divided the cores already.
_OWN_THREADS = ("intra_op_num_threads", "execution_mode", "session.intra_op_thread_affinities")


class ParallelCalls:
    """Threads that share one operator wait for each other at its end, and for whatever else has a core meanwhile; threads with
    a call of their own wait only at the end of the batch. `run` must release Python's lock while it computes."""

    def __init__(self, run: Callable[[Any], Any], *, at_once: int) -> None:
        self.at_once = at_once
        self._run = run
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="call")

    def run(self, feeds: Sequence[Any]) -> Iterator[Any]:
        """The answers in the order of the feeds, which is also the order in which they begin."""
        return self._pool.map(self._run, feeds)


def calls_at_once(options: Mapping[str, Any], *, provider: str, threads: int) -> int:
    """How many calls the model's threads can run in parallel: 1 on a device, and where the user has laid out the threads.

    `options`: the table `session`, flat.
    """
    return 1 if provider != "cpu" or any(name in options for name in _OWN_THREADS) else threads
