"""The users of the embedded store that only look: Flower's, and what gateway and worker may ask. `penstock flower` itself runs
beside `penstock up` in `tests/acceptance/test_cli.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from penstock.broker.server.users import ADMIN, FLOWER, GATEWAY, WORKER, passwords_in
from penstock.embedded.server import EmbeddedServer


def test_a_store_of_an_older_version_gets_the_missing_password_and_keeps_the_others(tmp_path: Path) -> None:
    file = tmp_path / "passwords.json"
    file.write_text(json.dumps({"admin": "a" * 32, "gateway": "g" * 32, "worker": "w" * 32}))
    passwords = passwords_in(file)
    assert tuple(map(passwords.of, (ADMIN, GATEWAY, WORKER))) == ("a" * 32, "g" * 32, "w" * 32)
    assert len(passwords.of(FLOWER)) == 32
    assert passwords_in(file) == passwords


def test_gateway_and_worker_may_ask_how_the_store_is_and_set_nothing_of_it(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, fsync="everysec", users=True) as server:
        for url in (server.gateway_url, server.worker_url):
            with Redis.from_url(url) as user:
                assert user.info("memory")["maxmemory_policy"] == "noeviction"
                with pytest.raises(NoPermissionError):
                    user.config_set("maxmemory-policy", "allkeys-lru")
