"""Inputs of stages are put together a few at a time, on real blobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.broker.blobs.files import BlobsUnavailable, LocalBlobs
from penstock.extensions.pipelines.worker.binding import Read
from penstock.extensions.pipelines.worker.joiner import MOST_JOINS, Joiner
from penstock.job import Payload

JSON = "application/json"
PARTS = {"a": Payload(JSON, b"1"), "b": Payload(JSON, b"2")}


class CountedJoins(LocalBlobs):
    """Counts the objects that have been put together and not been stored yet."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.held = self.most = 0

    def made(self, values: Mapping[str, Payload], read: Read) -> Payload:
        self.held += 1
        self.most = max(self.most, self.held)
        return Payload(JSON, b"".join(read(one) for one in values.values()))

    def append_all(self, blobs: Sequence[tuple[str, bytes]]) -> list[str]:
        self.held -= 1
        return super().append_all(blobs)


def named(number: int) -> str:
    return f"{number:026d}.in"


async def test_of_a_thousand_large_objects_only_a_few_are_in_memory(tmp_path: Path) -> None:
    # Regression: the threads put all of them together before the first one was stored, up to 64 MiB each.
    blobs = CountedJoins(tmp_path)
    joiner = Joiner(blobs)
    stages = (joiner.join(blobs.made, PARTS, blob=named(number), inline_bytes=1) for number in range(1_000))
    made = await asyncio.gather(*stages)
    assert blobs.most <= MOST_JOINS
    assert {blobs.get(one.blob) for one in made} == {b"12"}


async def test_a_small_object_stays_and_what_is_a_blob_already_is_not_written_again(tmp_path: Path) -> None:
    blobs = CountedJoins(tmp_path)
    joiner = Joiner(blobs)
    assert await joiner.join(blobs.made, PARTS, blob=named(1), inline_bytes=2) == Payload(JSON, b"12")
    stored = await joiner.stored(Payload("image/png", b"png"), blob=named(2), inline_bytes=1)
    assert blobs.get(stored.blob) == b"png"
    assert await joiner.stored(stored, blob=named(3), inline_bytes=1) == stored


async def test_who_fails_makes_room_for_the_others(tmp_path: Path) -> None:
    joiner = Joiner(CountedJoins(tmp_path))

    def away(values: Mapping[str, Payload], read: Read) -> Payload:
        raise BlobsUnavailable("away")

    joins = (joiner.join(away, PARTS, blob=named(number), inline_bytes=1) for number in range(3 * MOST_JOINS))
    found = await asyncio.gather(*joins, return_exceptions=True)
    assert {type(one) for one in found} == {BlobsUnavailable}
