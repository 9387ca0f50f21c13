"""A TCP link that a test can break in every way a network can: refused, reset, silent, half open, slow."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.loadtest.stack import free_port

T = TypeVar("T")
_CHUNK = 1 << 16


class Proxy:
    """A proxy runs in a thread of its own. Each method returns once its effect is in place."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._listener: socket.socket | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._links: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = {}
        self._kept: list[asyncio.StreamWriter] = []
        # Transports and not writers: a link with data left to send outlives its writer, and its socket would stay open.
        self._transports: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        self._open = asyncio.Event()
        self._delay_s = 0.0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._open.set()
        self._thread.start()
        self._do(self._listen())

    def stop(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        self._loop.close()

    def heal(self) -> None:
        """Let everything pass again; data that was stuck in a silent link arrives now, as after a routing fault."""
        self._delay_s = 0.0
        self._loop.call_soon_threadsafe(self._open.set)
        self._do(self._listen())

    def reset(self) -> None:
        """Reset every open link at both ends; new links pass."""
        self._do(self._cut(server_too=True))

    def refuse(self) -> None:
        """Reset all links, and refuse new links until `heal`."""
        self._do(self._unlisten())
        self._do(self._cut(server_too=True))

    def half_open(self) -> None:
        """Reset the clients' ends of all links without any sign to the server; new links pass."""
        self._do(self._cut(server_too=False))

    def silence(self) -> None:
        """Let nothing pass over the open links any more, without any sign to either end; new links pass."""
        self._do(self._silence())

    def blackhole(self) -> None:
        """Let nothing pass until `heal`, without any sign to either end."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def delay(self, seconds: float) -> None:
        """Delay each piece of data, in each direction, by this time until `heal`."""
        self._delay_s = seconds

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _unlisten(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        """Not `asyncio.start_server`: a server that is closed in the turn in which it accepts a link leaves that link open."""
        try:
            link, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        task = self._loop.create_task(self._serve(link))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _end(self) -> None:
        self._open.set()
        await self._unlisten()
        await self._cut(server_too=True)
        # Links being made or with data left to send count too: a loop that is closed on such links leaves their sockets open.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            self._abort_all()
            await asyncio.wait(others, timeout=0.1)
        # A link that was accepted last becomes known here within the next turns, and an aborted one closes a turn later.
        for _ in range(4):
            self._abort_all()
            await asyncio.sleep(0)

    def _abort_all(self) -> None:
        for transport in list(self._transports):
            transport.abort()

    async def _serve(self, link: socket.socket) -> None:
        link.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=link)
        self._transports.add(writer.transport)
        await self._open.wait()
        try:
            there, to_there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            _reset(writer)
            return
        self._transports.add(to_there.transport)
        if self._listener is None:  # refused while this link was being made
            _reset(writer)
            _reset(to_there)
            return
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = (writer, to_there)
        pumps = [asyncio.ensure_future(self._pump(reader, to_there)), asyncio.ensure_future(self._pump(there, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            if self._links.pop(task, None) is not None:
                writer.close()
                to_there.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._open.wait()
                writer.write(data)
                await writer.drain()

    async def _silence(self) -> None:
        links, self._links = self._links, {}
        for task, ends in links.items():
            self._kept += ends
            task.cancel()
        if links:
            await asyncio.wait(links)

    async def _cut(self, *, server_too: bool) -> None:
        links, self._links = self._links, {}
        for client, server in links.values():
            _reset(client)
            if server_too:
                _reset(server)
            else:
                self._kept.append(server)
        # The tasks of the links end by themselves, except those that a black hole holds until it is healed.
        if links and self._open.is_set():
            await asyncio.wait(links, timeout=1.0)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST: the peer's next call fails, as after a crash of the machine in between."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
