"""The connection of one thread to the store: it bypasses redis-py's encoding and sends any number of calls in one write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import hiredis
import redis

from penstock.broker.store.connection import client_options, is_cluster
from penstock.broker.store.links.refusals import DEMOTED

if TYPE_CHECKING:
    from penstock.broker.store.links.cluster_threads import ClusterThreadLink


class ThreadLink:
    """The connection of one thread, for calls that need none of redis-py's encoding. `pool` lends it.

    Any number of calls leave in one write. redis-py's own batches would take four times as much of the thread's time.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._connection: Any = None

    def answers(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The answers, in order. Raises what redis-py raises, and the first refusal once all answers are read."""
        answers = self._exchanged(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                self._leave_demoted(answers)
                raise answer
        return answers

    def replies(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """As `answers`, but refusals stand in their places as errors."""
        answers = self._exchanged(commands)
        self._leave_demoted(answers)
        return answers

    def together(self, key: str, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """`replies` of the one server that has `key`, in one write."""
        return self.replies(commands)

    def _leave_demoted(self, answers: Sequence[Any]) -> None:
        """Have the next call find the primary, where an address or sentinels lead to it."""
        if self._connection is not None and any(isinstance(answer, DEMOTED) for answer in answers):
            self._connection.disconnect()

    def _exchanged(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        packed = [hiredis.pack_command(tuple(words)) for words in commands]
        try:
            connection = self._open()
            connection.send_packed_command([packed[0] if len(packed) == 1 else b"".join(packed)])
            answers = [_answer(connection) for _ in commands]
        except BaseException:
            # The next call must not read answers that an earlier call left unread.
            if self._connection is not None:
                self._connection.disconnect()
            self.give_back()
            raise
        return answers

    def load(self, source: str) -> None:
        """Load the library of functions. Raises what redis-py raises."""
        self.answers([("FUNCTION", "LOAD", source)])

    def is_unsettled(self, for_s: float) -> bool:
        """Whether keys have changed their server within this time, while the connection stood: never."""
        return False

    def _open(self) -> Any:
        """The connection; opened again if the server has closed it since the last call."""
        if self._connection is None:
            self._connection = self._pool.get_connection()
        elif _is_closed(self._connection):
            self._connection.disconnect()
            self._connection.connect()
        return self._connection

    def give_back(self) -> None:
        """Let redis-py's own commands use the connection."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._pool.release(connection)

    def close(self) -> None:
        self.give_back()
        self._pool.disconnect()


def _is_closed(connection: Any) -> bool:
    """Whether the server has closed an idle connection, or sent data that no call waits for."""
    try:
        return bool(connection.can_read())
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        return True


def _answer(connection: Any) -> Any:
    """The next answer; a refusal is returned as an error, not raised."""
    try:
        return connection.read_response()
    except redis.ResponseError as refused:
        return refused


def thread_link(url: str, client: redis.Redis, name: str, source: str, *, within_s: float) -> ThreadLink | ClusterThreadLink:
    """The link of a thread's store. `client` is from `connect`; `source`: the library of functions."""
    if is_cluster(url):
        from penstock.broker.store.links.cluster_threads import ClusterThreadLink

        return ClusterThreadLink(url, client_options(url, name, within_s), source)
    return ThreadLink(client.connection_pool)
