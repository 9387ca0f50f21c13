"""TLS in front of a server that has none, in a process of its own: the packaged Valkey is built without."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def tls_front(socket_path: str, certificate: Path) -> Iterator[int]:
    """Yield a port of loopback that answers with this certificate, for a server that listens on a Unix socket."""
    command = [sys.executable, __file__, socket_path, str(certificate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _serve(socket_path: str, certificate: str) -> None:
    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_unix_connection(socket_path)
        await asyncio.gather(_copy(reader, back_writer), _copy(back_reader, writer))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(join, "127.0.0.1", 0, ssl=context)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
