"""The receiver that docs/how-to/webhooks.md shows does what the page says of it."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import pytest

from penstock.extensions.webhooks.webhook import new_signing_key, owner_secret, signature
from tests.markdown import ROOT, code_blocks

SECRET = owner_secret(new_signing_key(), "me")
BODY = b'{"type":"job.succeeded","timestamp":"2026-11-23T12:00:00Z","data":{"id":"a-square","output":{"y":16}}}'


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    [block] = [block for block in code_blocks(ROOT / "docs" / "how-to" / "webhooks.md") if block.language == "python"]
    names: dict[str, Any] = {}
    exec(block.text, names)
    return names["app"]


def signed(body: bytes = BODY) -> dict[str, str]:
    now = int(time.time())
    sign = signature([SECRET], event_id="msg_1", timestamp=now, body=body)
    return {"Webhook-Id": "msg_1", "Webhook-Timestamp": str(now), "Webhook-Signature": sign}


async def test_the_receiver_of_the_page_takes_an_event_once_and_no_forged_one(
    receiver: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    transport = httpx2.ASGITransport(receiver)
    async with httpx2.AsyncClient(transport=transport, base_url="http://receiver") as client:
        for _ in range(2):
            answer = await client.post("/hooks", content=BODY, headers=signed())
            assert answer.status_code == 204
        forged = await client.post("/hooks", content=BODY + b" ", headers=signed())
        assert forged.status_code == 401
    assert capsys.readouterr().out.splitlines() == ["job.succeeded a-square {'y': 16}"]
