"""The input of a prediction: a link to an uploaded file of this gateway is replaced by the file."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import Iterator, MutableMapping
from typing import Any

from penstock.broker.blobs.uploads import FileRecord, FileStore
from penstock.errors import TooLarge
from penstock.gateway.asgi.wire import BodyMemory
from penstock.gateway.auth.keys import Caller
from penstock.gateway.files import visible_file
from penstock.inputs.file import OCTETS, File, data_url

_FILE = re.compile(r"/replicate/v1/files/(file-[0-9a-z]{26})")


class UploadedInputs:
    """The model's process has no key of a caller and asks no gateway, so the gateway reads the files.

    `within_s`: how long a request waits for the memory that its files take.
    """

    def __init__(self, files: FileStore, most_bytes: int, memory: BodyMemory, *, within_s: float) -> None:
        self._files = files
        self._memory = memory
        self._most_bytes = most_bytes
        self._within_s = within_s
        # One file at a time: while a file is encoded, there are several copies of it.
        self._reading = asyncio.Lock()

    async def resolved(self, value: dict[str, Any], base: str, scope: MutableMapping[str, Any]) -> dict[str, Any]:
        """The input, with data URLs in place of links to files of the scope's caller, whose share of the memory they take.

        Raises `NotFound` for a file that is not the caller's, `TooLarge` if all files have more than `most_bytes`,
        `GatewayBusy` if there is no memory for them in time.
        """
        caller: Caller = scope["caller"]
        ids = dict.fromkeys(id for text in _texts(value) if (id := _file_id(text, base)))
        if not ids:
            return value
        records = [await visible_file(self._files, file_id, caller) for file_id in ids]
        size = sum(sum(_file_id(text, base) == record.id for text in _texts(value)) * record.size_bytes for record in records)
        if size > self._most_bytes:
            raise TooLarge(f"the files of the input have {size} bytes; the most is {self._most_bytes}")
        # Four characters stand for three bytes.
        await self._memory.take_in_turn(size * 4 // 3, scope, within_s=self._within_s)
        async with self._reading:
            urls = {record.id: await asyncio.to_thread(self._url_of, record) for record in records}
        replaced: dict[str, Any] = _replaced(value, base, urls)
        return replaced

    def _url_of(self, record: FileRecord) -> str:
        data = self._files.content(record).read_bytes()
        return data_url(File(data, mimetypes.guess_type(record.filename)[0] or OCTETS, record.filename))


def _file_id(text: str, base: str) -> str:
    """The id of the file that a link of this gateway names; empty for any other text."""
    if not text.startswith(base):
        return ""
    match = _FILE.fullmatch(text, len(base))
    return match[1] if match else ""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for own in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(own)


def _replaced(value: Any, base: str, urls: dict[str, str]) -> Any:
    if isinstance(value, str):
        return urls.get(_file_id(value, base), value)
    if isinstance(value, list):
        return [_replaced(own, base, urls) for own in value]
    return {name: _replaced(own, base, urls) for name, own in value.items()} if isinstance(value, dict) else value
