"""`python -m benchmarks.experiments.async_items.service PORT`: answers every POST with `{}`, mostly soon and sometimes late."""

from __future__ import annotations

import asyncio
import itertools
import sys

# Of a hundred answers so many take so many seconds. The order is a fixed one, so that all turns meet the same service.
SPREAD_S = ((80, 0.02), (18, 0.1), (2, 1.0))
_STRIDE = 37
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def latencies_s() -> list[float]:
    """The latencies of a hundred answers in a row, well mixed."""
    all_s = [seconds for count, seconds in SPREAD_S for _ in range(count)]
    return [all_s[place * _STRIDE % len(all_s)] for place in range(len(all_s))]


def mean_s() -> float:
    return sum(latencies_s()) / len(latencies_s())


async def serve(port: int) -> None:
    waits_s = itertools.cycle(latencies_s())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(_body_bytes(head))
                await asyncio.sleep(next(waits_s))
                writer.write(_ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port, backlog=1_024) as server:
        await server.serve_forever()


def _body_bytes(head: bytes) -> int:
    fields = dict(line.lower().split(b":", 1) for line in head.splitlines() if b":" in line)
    return int(fields.get(b"content-length", b"0"))


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
