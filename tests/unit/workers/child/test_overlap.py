"""Batches of an async handler that overlap in one process: the pipeline on a real wire, and the time in which any ran."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread

import pytest

from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.handlers.running.coroutines import run_to_end
from penstock.workers.child.__main__ import _load
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.overlap import BusyTime, OverlapThreads
from penstock.workers.child.printed import Speaker
from penstock.workers.child.shards.sizes import ShardSizes
from penstock.workers.ipc.frames import (
    INPUT_READING_CODE,
    BatchDone,
    Failed,
    FromChild,
    Item,
    JobFacts,
    LoadModel,
    Outcome,
    Output,
    RunBatch,
    StopChild,
)
from penstock.workers.ipc.progress_page import ProgressPage
from penstock.workers.ipc.wire import ChildWire, SupervisorWire
from tests.eventually import eventually

MODEL = """
import penstock

@penstock.model
async def size(file: penstock.File, context: penstock.Context) -> int:
    [item], [request] = context.items, context.requests
    assert request.input is file
    return len(file)
"""
TICKING = """
import asyncio
import penstock

class Ticking(penstock.Handler):
    async def initialize(self, context):
        self.ticks = 0
        self.ticking = asyncio.create_task(self.tick())

    async def tick(self):
        while True:
            await asyncio.sleep(0.005)
            self.ticks += 1

    async def inference(self, batch):
        return batch
"""


class Pair(BaseHTTPRequestHandler):
    """Answers two requests once both are here, and none before."""

    together = Barrier(2, timeout=20.0)

    def do_GET(self) -> None:
        try:
            self.together.wait()
        except BrokenBarrierError:
            self.send_error(500)
            return
        self.send_response(200)
        self.send_header("content-length", "3")
        self.end_headers()
        self.wfile.write(b"abc")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def origin() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pair) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@contextmanager
def served(loaded: Loaded) -> Iterator[SupervisorWire]:
    """Yield the supervisor's end of a pipeline that runs in a thread."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    page, wire, child = ProgressPage.create(), SupervisorWire(ours), ChildWire(theirs)
    thread = Thread(target=OverlapThreads(child, page, loaded, ShardSizes(8), Calls(loaded)).serve)
    thread.start()
    yield wire
    wire.send(StopChild())
    thread.join()
    page.close()
    ours.close()
    # A child's end lasts as long as its process, so that nothing closes it.
    child._reader.close()
    theirs.close()


def received(wire: SupervisorWire, frames: list[FromChild]) -> list[FromChild]:
    """Return the frames, with those that have arrived since."""
    frames += wire.receive()
    return frames


def test_inputs_with_urls_are_read_side_by_side(tmp_path: Path, origin: str) -> None:
    """Regression: given one by one, each would have waited for the files of those before it."""
    (tmp_path / "mine.py").write_text(MODEL)
    loaded = replace(load(str(tmp_path / "mine.py"), "mine"), input_urls=(origin,))
    frames: list[FromChild] = []
    with served(loaded) as wire:
        for number in (1, 2):
            body = json.dumps(f"{origin}{number}").encode()
            # As a supervisor sends it: a task that had to ask for the facts would hold up all others.
            wire.send(RunBatch(number, [Item("application/json", body, facts=JobFacts())]))
        eventually(lambda: len(received(wire, frames)) == 2)
    done = [frame for frame in frames if isinstance(frame, BatchDone)]
    assert {one.batch: one.outcomes for one in done} == {number: [Output("application/json", b"3")] for number in (1, 2)}


def test_an_item_whose_file_takes_long_is_answered_unread_and_found_when_its_job_comes_again(
    tmp_path: Path, origin: str
) -> None:
    """D150: it would else fill one of the places of items that run side by side."""
    (tmp_path / "mine.py").write_text(MODEL)
    loaded = replace(load(str(tmp_path / "mine.py"), "mine"), input_urls=(origin,))
    numbers = count(1)
    with served(loaded) as wire:

        def answer(job: str) -> Outcome:
            frames: list[FromChild] = []
            item = Item("application/json", json.dumps(f"{origin}{job}").encode(), facts=JobFacts(job))
            wire.send(RunBatch(next(numbers), [item]))
            done = eventually(lambda: [one for one in received(wire, frames) if isinstance(one, BatchDone)])
            return done[0].outcomes[0]

        def has_output(job: str) -> bool:
            return answer(job) == Output("application/json", b"3")

        first = answer("a")
        assert isinstance(first, Failed)
        assert first.code == INPUT_READING_CODE
        for job in ("b", "a"):  # The host answers both once it was asked for both.
            eventually(partial(has_output, job))


def test_the_loop_turns_between_items(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TICKING)
    loaded, frames = load(str(tmp_path / "mine.py"), "mine"), list[FromChild]()
    with served(loaded) as wire:
        wire.send(RunBatch(1, [Item("application/json", b"1", facts=JobFacts())]))
        eventually(lambda: received(wire, frames))
        seen = loaded.handler.ticks  # type: ignore[attr-defined]
        eventually(lambda: loaded.handler.ticks > seen)  # type: ignore[attr-defined]
    loaded.handler.ticking.cancel()  # type: ignore[attr-defined]
    run_to_end(asyncio.sleep(0))


def test_a_sample_is_run_alone_as_items_go_to_the_handler_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import penstock\n@penstock.model(sample=3, max_batch_size=16)\nasync def mine(x: int) -> int: return 2 * x\n"
    )
    _, _, ready = _load(LoadModel("m", "1", str(tmp_path / "mine.py"), max_batch_size=0), Speaker())
    assert ([run.size for run in ready.warm], ready.at_once) == ([1], 16)


def test_time_in_which_several_ran_counts_once() -> None:
    busy = BusyTime()
    busy.begin(10.0)
    busy.begin(11.0)
    assert busy.end(13.0) == 3.0
    busy.begin(14.0)
    assert [busy.end(15.0), busy.end(16.0)] == [2.0, 1.0]


def test_time_in_which_none_ran_does_not_count() -> None:
    busy = BusyTime()
    busy.begin(10.0)
    busy.end(11.0)
    busy.begin(20.0)
    assert busy.end(20.5) == 0.5
