"""The stack behind the dashboard's tests: two gateways, one of them with keys and a prefix, a worker and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from penstock.extensions.webhooks.webhook import new_signing_key
from tests.acceptance.browser import browsing
from tests.acceptance.gateway_process import GatewayClient
from tests.eventually import eventually
from tests.security.keyed import ALICE, BOSS, READER
from tests.stack import Stack

# Events go there in vain.
NOWHERE = "http://127.0.0.1:9/"
# The handler holds this item until a file is there.
HELD = 999_999
HANDLER = """
import time
from pathlib import Path
import penstock


@penstock.model(max_batch_size=4)
def moody(item: int) -> dict:
    if item < 0:
        raise ValueError(f"item {item} is <b onmouseover=alert()>below</b> zero")
    while item == 999_999 and not Path(__file__).with_name("open").exists():
        time.sleep(0.01)
    time.sleep(0.02)
    return {"square": item * item}
"""

# A model that takes a form with a file, and one whose outputs are of many kinds.
MORE = """
from __future__ import annotations
import base64, io, struct, wave, zlib
from dataclasses import dataclass
import penstock
from penstock import File, Media


@dataclass
class Picture:
    image: File
    label: str = "none"


@penstock.model
def shapes(item: Picture) -> list:
    row = {"bytes": len(item.image), "label": item.label}
    return [row, row]


def sound() -> bytes:
    with wave.open(out := io.BytesIO(), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(16000))
    return out.getvalue()


def noise(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\\0" + bytes((x * y * 7919 >> 3) & 255 for x in range(side * 3)) for y in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")


@penstock.model
def kinds(kind: str) -> object:
    if kind == "audio":
        return Media(sound(), "audio/wav")
    if kind == "image":
        return Media(noise(400), "image/png")
    if kind == "html":
        return Media(b"<script>alert(1)</script>", "text/html")
    if kind.startswith("base64:"):
        return base64.b64decode(kind[7:])
    return {"words": "<script>alert(1)</script>", "deep": {"list": [[1, 2], [3]], "none": None}}
"""


class DashboardStack(Stack):
    """`gateway` needs no key; `keyed` needs keys, sends webhooks and serves its pages below /penstock, as behind a proxy."""

    browser: Browser

    @property
    def gateway(self) -> GatewayClient:
        return self.gateways[0]

    @property
    def keyed(self) -> GatewayClient:
        return self.gateways[1]

    def open(self) -> None:
        """Let the item that is held end."""
        (self.folder / "open").touch()

    def submit(self, *items: int) -> list[str]:
        return [self.gateway.post("/v1/models/moody/jobs", json=item).json()["id"] for item in items]

    def job(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.gateway.get(f"/v1/jobs/{id}").json()
        return found

    def failed(self, count: int) -> list[str]:
        """Submits `count` jobs that fail, and waits for their end."""
        jobs = self.submit(*range(-1, -1 - count, -1))
        eventually(lambda: self.queue()["in_flight"] == self.queue()["depth"] == 0, timeout_s=30.0)
        return jobs

    def queue(self) -> dict[str, Any]:
        found: dict[str, Any] = self.gateway.get("/v1/queues/moody").json()
        return found


@contextmanager
def dashboard_stack(folder: Path, *more: str) -> Iterator[DashboardStack]:
    """A stack with a store server of its own, and these models of `MORE`.

    On the server that the tests share, records that processes of other tests still wrote appeared on the page as a row.
    """
    (folder / "moody.py").write_text(HANDLER)
    keys = folder / "keys.toml"
    keys.write_text(READER.toml + BOSS.toml + ALICE.toml)
    (folder / "more.py").write_text(MORE)
    models: dict[str, Any] = {"moody": {"source": str(folder / "moody.py"), "slots": 1, "keep_tracebacks": True}}
    models |= {name: {"source": f"{folder / 'more.py'}:{name}", "slots": 1} for name in more}
    env = {
        "PENSTOCK_KEYS_FILE": str(keys),
        "PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key(),
        "PENSTOCK_WEBHOOKS__URLS": NOWHERE,
        "PENSTOCK_WEBHOOKS__RETRY_S": "0.1,0.2,0.2",
        "PENSTOCK_WEBHOOKS__CIRCUIT_S": "0.1,0.2",
    }
    with browsing() as browser, DashboardStack(folder, models) as stack:
        stack.browser = browser
        stack.start_worker()
        stack.start_gateway()
        stack.start_gateway(root_path="/penstock", env=env)
        stack.await_ready()
        yield stack
