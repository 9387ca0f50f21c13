"""Several calls of a model at once with one thread each, instead of one call with several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# A user who sets one of these in the table `session` has divided the cores already.
_OWN_THREADS = ("intra_op_num_threads", "execution_mode", "session.intra_op_thread_affinities")


class ParallelCalls:
    """A pool of threads that make one call each.

    Threads that share an operator wait for each other at its end, and so for any process that takes a core meanwhile. Threads
    with a call of their own wait only at the end of the batch. `run` must release Python's lock while it computes. See D45.
    """

    def __init__(self, run: Callable[[Any], Any], *, at_once: int) -> None:
        self.at_once = at_once
        self._run = run
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="call")

    def run(self, feeds: Sequence[Any]) -> Iterator[Any]:
        """The outputs in the order of the feeds. The calls begin in the same order."""
        return self._pool.map(self._run, feeds)


def calls_at_once(options: Mapping[str, Any], *, provider: str, threads: int) -> int:
    """How many calls the model's threads can run in parallel: 1 on a GPU, and 1 if the user has divided the threads.

    `options`: the table `session`, flat.
    """
    return 1 if provider != "cpu" or any(name in options for name in _OWN_THREADS) else threads
