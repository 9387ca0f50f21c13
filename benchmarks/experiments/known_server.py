"""An HTTP server with the latencies of `known_queue`: `python -m benchmarks.experiments.known_server FIXED_S PER_ITEM_S MOST`.

It prints its port and ends with its stdin. A thread sleeps for the device, because timers of an event loop count milliseconds.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable

from benchmarks.experiments.known_queue import KnownDevice
from penstock.loadtest.null_server import NullProtocol

Answer = Callable[[], None]
Waiting = queue.SimpleQueue[tuple[float, Answer]]


def _work(device: KnownDevice, waiting: Waiting, loop: asyncio.AbstractEventLoop) -> None:
    """Each batch begins at its computed moment, so that a sleep that takes too long does not delay the next batch."""
    free_at = 0.0
    while True:
        arrived_at, answer = waiting.get()
        answers = [answer]
        begins_at = max(free_at, arrived_at)
        while len(answers) < device.most and not waiting.empty():
            answers.append(waiting.get()[1])
        free_at = begins_at + device.run_s(len(answers))
        time.sleep(max(0.0, free_at - time.perf_counter()))
        for each in answers:
            loop.call_soon_threadsafe(each)


async def _serve(device: KnownDevice) -> None:
    loop = asyncio.get_running_loop()
    waiting: Waiting = queue.SimpleQueue()

    def made() -> NullProtocol:
        return NullProtocol(lambda answer: waiting.put((time.perf_counter(), answer)))

    server = await loop.create_server(made, "127.0.0.1", 0)
    threading.Thread(target=_work, args=(device, waiting, loop), daemon=True).start()
    print(server.sockets[0].getsockname()[1], flush=True)
    over = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), over.set)
    await over.wait()
    server.close()


def main() -> int:
    fixed_s, per_item_s, most = sys.argv[1:]
    asyncio.run(_serve(KnownDevice(float(fixed_s), float(per_item_s), int(most))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
