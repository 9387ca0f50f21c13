"""Keys and tokens end by the store's clock, also at a gateway whose own clock is an hour off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.gateway_process import GatewayClient
from tests.faults.shims import NoCompiler, build
from tests.security.keyed import BOSS, keyed_gateway, make

LIFETIME_S = 1_800
HOUR_S = 3_600


def ending(in_s: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=in_s)).isoformat(timespec="seconds")


SOON = make("soon", "read", more=f"expires_at = {ending(1_800)}")
PAST = make("past", "read", more=f"expires_at = {ending(-1_800)}")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build("clock", tmp_path_factory.mktemp("clock"))
    except NoCompiler as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=[HOUR_S, -HOUR_S], ids=["an hour fast", "an hour slow"])
def gateway(request: pytest.FixtureRequest, library: Path, redis_url: str, tmp_path: Path) -> Iterator[GatewayClient]:
    env = {
        "LD_PRELOAD": str(library),
        "CLOCK_OFFSET_S": str(request.param),
        "PENSTOCK_TORCHSERVE__ENABLED": "true",
        "PENSTOCK_TORCHSERVE__KEY_PATH": str(tmp_path / "key_file.json"),
        "PENSTOCK_TORCHSERVE__TOKEN_LIFETIME_S": str(LIFETIME_S),
    }
    with keyed_gateway(redis_url, tmp_path / "gateway", keys=(BOSS, SOON, PAST), env=env) as gateway:
        yield gateway


def test_keys_and_tokens_end_by_the_stores_clock(gateway: GatewayClient, tmp_path: Path) -> None:
    # Regression: they ended by the gateway's: a fast one refused keys that had an hour left, a slow one let ended keys in.
    def status(key: str) -> int:
        return gateway.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

    made = [
        gateway.post("/v1/keys", json={"id": name, "roles": ["read"], "expires_at": ending(in_s)}, headers=BOSS.header)
        for name, in_s in ((f"made-{tmp_path.name[-1]}", 1_800), (f"over-{tmp_path.name[-1]}", -1_800))
    ]
    given = [one.json()["key"] for one in made if one.status_code == 201]
    keys = [f"{SOON.id}.{SOON.secret}", f"{PAST.id}.{PAST.secret}", *given]
    assert [status(key) for key in keys] == [200, 401, 200, 401]
    token = json.loads((tmp_path / "key_file.json").read_text())["inference"]
    left_s = (datetime.fromisoformat(token["expiration time"]) - datetime.now(UTC)).total_seconds()
    assert LIFETIME_S - 300 < left_s <= LIFETIME_S
    assert status(token["key"]) == 200
