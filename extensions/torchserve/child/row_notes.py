"""Which handlers look at one request of a batch only, found while they run: such a handler gets its rows one by one (D130).

Half of all public handlers read `data[0]` and nothing else, which answers wrongly as soon as a batch has two requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

from penstock.extensions.torchserve.child.context import TorchServeContext

Handle = Callable[[Any, Any], Any]
_READS_ONE = "it reads one request of a batch only"
_RETURNS_ONE = "it returns a list of one entry"


class ReadsOneRow(Exception):
    """The call had several rows, and its handler takes one."""


class NotedRows(list[Any]):
    """The rows of a batch, which note which of them were read. Asking for their number or their text does not count.

    Rows are known by their identity: a handler may take them off the list, so that others move to the front.
    """

    def __init__(self, rows: list[Any]) -> None:
        super().__init__(rows)
        # Rows that are one object are one row to a handler, too: strings and numbers of an envelope.
        self._is_alike = len({id(row) for row in rows}) < 2
        self._read: set[int] = set()

    @property
    def is_one_read(self) -> bool:
        return len(self._read) == 1 and not self._is_alike

    def _note(self, *rows: Any) -> None:
        self._read.update(map(id, rows))

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        rows: Any = super().__getitem__(index)
        self._note(*(rows if isinstance(index, slice) else (rows,)))
        return rows

    def __iter__(self) -> Iterator[Any]:
        for row in super().__iter__():
            self._note(row)
            yield row

    def __reversed__(self) -> Iterator[Any]:
        for row in super().__reversed__():
            self._note(row)
            yield row

    def pop(self, index: SupportsIndex = -1) -> Any:
        self._note(row := super().pop(index))
        return row

    # Code that reads the list without asking for single rows takes all of them.

    def copy(self) -> list[Any]:
        return list(self)

    def __add__(self, other: Any) -> Any:
        return list(self) + other

    def __mul__(self, times: SupportsIndex) -> list[Any]:
        return list(self) * times

    __rmul__ = __mul__

    def __contains__(self, row: object) -> bool:
        return row in list(self)

    def index(self, row: Any, *ends: SupportsIndex) -> int:
        return list(self).index(row, *ends)

    def sort(self, **how: Any) -> None:
        self._note(*list(self))
        super().sort(**how)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """A copy in another process, or of `copy`, is a plain list."""
        return list, (list(self),)


class NotingHandle:
    """`handle`, called with rows that note what it reads. `why`: how it was found to take one row only; empty if it was not.

    A request may bring several rows, by an envelope: they are run one by one here. Rows of several requests are the worker's to
    part, because each has a context, a stream and a failure of its own.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._rows = _NONE
        self.why = ""

    def __call__(self, data: Any, context: TorchServeContext) -> Any:
        if not isinstance(data, list) or len(data) < 2:
            return self._handle(data, context)
        is_one_request = len(context.request_processor) == 1
        returned = None if self.why and is_one_request else self._noted(data, context)
        return [answer for row in data for answer in self._handle([row], context)] if self.why and is_one_request else returned

    def _noted(self, data: list[Any], context: TorchServeContext) -> Any:
        self._rows = NotedRows(data)
        try:
            returned = self._handle(self._rows, context)
            if self._rows.is_one_read:
                self.why = _READS_ONE
            elif isinstance(returned, list) and len(returned) == 1:
                self.why = _RETURNS_ONE
            return returned
        finally:
            self._rows = _NONE

    def refuse_to_send(self) -> None:
        """Raises `ReadsOneRow` if only one row of the call was read: what is sent now would reach all of its callers."""
        if self._rows.is_one_read:
            self.why = _READS_ONE
            raise ReadsOneRow(self.why)


class FirstRequest:
    """Whether the handler asks for headers, or sets the response, of request 0 only, whatever its batch.

    The first request of a batch may be the only one that needs it. So the rows are run again alone, once: if another one of
    them asks for headers or sets a response then, the handler always addresses the first.
    """

    def __init__(self) -> None:
        self.why = ""
        self._is_cleared = False
        self._suspected = ""
        self._waiting = 0
        self._others = 0

    @property
    def is_on_trial(self) -> bool:
        return self._waiting > 0

    def on_call(self, context: TorchServeContext) -> None:
        """A call of `handle` has ended."""
        count = len(context.request_processor)
        if self.is_on_trial and count == 1:
            self._on_alone(context)
        elif not self._is_cleared and count > 1:
            lone = [what for what, indices in context.touched.items() if indices == {0}]
            if lone:
                self._suspected, self._waiting = lone[0], count

    def _on_alone(self, context: TorchServeContext) -> None:
        self._waiting -= 1
        self._others += bool(context.touched[self._suspected])
        if not self._waiting:
            self._is_cleared = True
            self.why = f"it {self._suspected} one request of a batch only" if self._others > 1 else ""


_NONE = NotedRows([])
