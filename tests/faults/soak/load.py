"""`python -m tests.faults.soak.load PORT PATH RATE`: answer-now requests at a steady rate from many connections, until killed.

It is a process of its own, so that its threads and memory are none of those that are measured. Every second it prints one JSON
line with how requests were answered since its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter

LANES = 48
_SAY_EVERY_S = 1.0
_AGAIN_S = 0.2
_LIMIT_S = 15.0
# A lane that is further behind than this skips what it missed: after a kill, a burst would measure the burst.
_BEHIND_S = 1.0
_BODY = b'{"x": 4}'


def request(path: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(_BODY)}\r\n\r\n"
    return head.encode() + _BODY


async def main(port: int, path: str, per_s: float) -> None:
    told: Counter[str] = Counter()
    lanes = [asyncio.create_task(_drive(port, request(path), LANES / per_s, told)) for _ in range(LANES)]
    saying = asyncio.create_task(_say(told))
    await asyncio.gather(saying, *lanes)


async def _say(told: Counter[str]) -> None:
    while True:
        await asyncio.sleep(_SAY_EVERY_S)
        print(json.dumps(told), flush=True)


async def _drive(port: int, sent: bytes, pause_s: float, told: Counter[str]) -> None:
    """One connection after another, each until it breaks."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            told["broken"] += 1
            await asyncio.sleep(_AGAIN_S)
            continue
        try:
            await _talk(reader, writer, sent, pause_s, told)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            told["broken"] += 1
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await asyncio.sleep(_AGAIN_S)


async def _talk(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes, pause_s: float, told: Counter[str]
) -> None:
    due = time.monotonic()
    while True:
        due = max(due + pause_s, time.monotonic() - _BEHIND_S)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        writer.write(sent)
        status, body = await asyncio.wait_for(read_answer(reader), _LIMIT_S)
        told[_kind(status, body)] += 1


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    _, _, length = head.lower().partition(b"content-length: ")
    return int(head[9:12]), await reader.readexactly(int(length.partition(b"\r\n")[0]))


def _kind(status: int, body: bytes) -> str:
    if status == 200:
        return "right" if json.loads(body) == json.loads(_BODY) else "wrong"
    return "refused" if status in (429, 503) else f"status {status}"


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
