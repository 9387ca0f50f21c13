"""What one owner may store, over the whole application without a server: refused before a byte of the body is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.aio import AsyncStore
from penstock.gateway.app import Gateway
from penstock.gateway.asgi.connection import Lifetime
from penstock.settings.tables import Settings

HOST = (b"host", b"localhost")
CONTENT = b"x" * 100_000


@dataclass
class Answered:
    """An answer, and how many pieces of the body were asked for."""

    status: int
    body: dict[str, Any]
    pieces: int


def gateway(folder: Path, limits: Mapping[str, Any]) -> Gateway:
    nowhere = AsyncStore("redis://127.0.0.1:1")
    flags = {"store.files_dir": folder, **limits}
    return Gateway(Settings.load(None, {}, flags=flags), store=nowhere, blobs=LocalBlobs(folder), lifetime=Lifetime())


def form(content: bytes) -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="%b"'
    field = head % b"purpose" + b"\r\n\r\nbatch\r\n"
    return field + head % b"file" + b'; filename="a"\r\n\r\n' + content + b"\r\n--b--\r\n"


def scope(method: str, path: str) -> dict[str, Any]:
    asked = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    return {**asked, "asgi": {"version": "3.0"}}


def content_on_disk(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name not in ("CLOCK", "whole")]


async def upload(app: Gateway, content: bytes = CONTENT, *, declared: int | None = None) -> Answered:
    """Upload in pieces. `declared` 0: without a Content-Length."""
    body = form(content)
    length = len(body) if declared is None else declared
    headers = [
        HOST,
        (b"content-type", b"multipart/form-data; boundary=b"),
        *([(b"content-length", b"%d" % length)] if length else []),
    ]
    pieces: Iterator[bytes] = iter([body[at : at + 50_000] for at in range(0, len(body), 50_000)])
    sent: list[dict[str, Any]] = []
    asked = 0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        piece = next(pieces, b"")
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/files",
        "raw_path": b"/v1/files",
        "query_string": b"",
        "root_path": "",
    }
    await app({**scope, "headers": headers, "asgi": {"version": "3.0"}}, receive, send)
    content_of_answer = b"".join(message.get("body", b"") for message in sent[1:])
    return Answered(sent[0]["status"], orjson.loads(content_of_answer), asked)


async def delete(app: Gateway, file_id: str) -> int:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({**scope("DELETE", f"/v1/files/{file_id}"), "headers": [HOST]}, receive, send)
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize(
    ("limits", "status", "code", "setting"),
    [
        ({"runs.max_file_bytes": 1_000}, 413, "too_large", "runs.max_file_bytes"),
        ({"runs.max_owner_bytes": 50_000}, 429, "quota_spent", "runs.max_owner_bytes"),
        ({"store.reserve_bytes": 2**62}, 507, "storage_full", "store.reserve_bytes"),
    ],
)
async def test_what_has_no_room_is_refused_before_it_is_read(
    tmp_path: Path, limits: dict[str, int], status: int, code: str, setting: str
) -> None:
    # Regression: one caller could fill the disk on which the store syncs its writes.
    answer = await upload(gateway(tmp_path, limits), CONTENT * 3)
    assert (answer.status, answer.body["code"], answer.pieces) == (status, code, 0)
    assert setting in answer.body["hint"]
    assert content_on_disk(tmp_path) == []


@pytest.mark.parametrize(
    ("limits", "status"), [({"runs.max_owner_bytes": 50_000}, 429), ({"runs.max_file_bytes": 50_000}, 413)]
)
async def test_a_body_that_does_not_say_its_length_is_refused_as_it_is_read(
    tmp_path: Path, limits: dict[str, int], status: int
) -> None:
    answer = await upload(gateway(tmp_path, limits), declared=0)
    assert answer.status == status
    assert content_on_disk(tmp_path) == []


async def test_an_owner_has_room_again_once_a_file_is_deleted(tmp_path: Path) -> None:
    app = gateway(tmp_path, {})
    app.services.quota._max_files = 2
    first, second = await upload(app), await upload(app)
    assert (first.status, second.status) == (200, 200)
    third = await upload(app)
    assert (third.status, third.body["code"], third.pieces) == (429, "quota_spent", 0)
    assert (await delete(app, first.body["id"])) == 200
    assert (await upload(app)).status == 200
