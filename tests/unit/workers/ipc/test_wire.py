from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from penstock.errors import InternalError
from penstock.workers.ipc.frames import (
    BatchDone,
    Failed,
    Item,
    LoadModel,
    Output,
    Ready,
    RunBatch,
    StopChild,
    ToChild,
    Warm,
)
from penstock.workers.ipc.wire import (
    ChildGone,
    ChildWire,
    SupervisorWire,
    encode,
)

Ends = tuple[SupervisorWire, ChildWire, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    wire = SupervisorWire(ours)
    yield wire, ChildWire(theirs), theirs
    wire.close()
    theirs.close()


DONE = BatchDone(7, [Output("application/json", b"\x00\xff"), Failed("refused", "no")], 1.0, 2.0, 0.1, 0.2, 0.3, cap=0)


def test_what_the_supervisor_sends_arrives_as_it_was(ends: Ends) -> None:
    wire, child, _ = ends
    frames: list[ToChild] = [
        LoadModel("m", "1", "m.py", cores=(0, 1), options={"a": [1]}),
        RunBatch(1, [Item("text/plain", b"x"), Item("image/png", path="/p")]),
        StopChild(),
    ]
    for frame in frames:
        wire.send(frame)
    assert [child.read() for _ in frames] == frames


def test_what_a_child_sends_arrives_as_it_was(ends: Ends) -> None:
    wire, child, _ = ends
    ready = Ready(0.5, schemas=({"type": "integer"}, None), warm=[Warm(1, 0.2, 0.1)])
    child.write(ready)
    child.write(DONE)
    assert wire.receive() == [ready, DONE]
    assert DONE.cap == 0


def test_a_frame_that_arrives_in_pieces_is_handed_out_when_it_is_whole(ends: Ends) -> None:
    wire, _, theirs = ends
    data = encode(DONE)
    for piece in (data[:3], data[3:10]):
        theirs.sendall(piece)
        assert wire.receive() == []
    theirs.sendall(data[10:] + data[:5])
    assert wire.receive() == [DONE]
    theirs.sendall(data[5:])
    assert wire.receive() == [DONE]


def test_a_child_that_does_not_read_does_not_stop_its_supervisor(ends: Ends) -> None:
    wire, _, theirs = ends
    frames: list[ToChild] = [RunBatch(1, [Item("application/octet-stream", b"x" * 4_000_000)]), StopChild()]
    for frame in frames:
        wire.send(frame)
    assert wire.has_unsent
    received = b""
    while wire.has_unsent:
        received += theirs.recv(1 << 20)
        wire.flush()
    theirs.setblocking(False)
    received += theirs.recv(1 << 23)
    assert received == b"".join(encode(frame) for frame in frames)


def test_frames_sent_before_a_child_ended_are_handed_out_before_its_end_is(ends: Ends) -> None:
    wire, child, theirs = ends
    child.write(DONE)
    child._reader.close()
    theirs.close()
    assert wire.receive() == [DONE]
    with pytest.raises(ChildGone):
        wire.receive()


def test_sending_to_a_child_that_ended_raises_nothing(ends: Ends) -> None:
    wire, child, theirs = ends
    child._reader.close()
    theirs.close()
    wire.send(StopChild())
    assert not wire.has_unsent


def test_a_child_whose_supervisor_is_gone_reads_the_end(ends: Ends) -> None:
    wire, child, _ = ends
    wire.close()
    assert child.read() is None


def test_a_length_that_no_frame_has_is_refused(ends: Ends) -> None:
    wire, _, theirs = ends
    theirs.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(InternalError, match="4294967295 bytes"):
        wire.receive()
