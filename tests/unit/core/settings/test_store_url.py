from __future__ import annotations

import pytest
import redis
from kombu.utils.url import parse_url

from penstock.broker.celery_app import broker_url
from penstock.errors import ConfigError
from penstock.settings.store_url import store_url
from penstock.settings.tables import Settings

TAKEN = (
    "redis://localhost",
    "redis://user:p%40ss@host:6379/3",
    "rediss://host:6380/0",
    "valkey://user:pw@host:6379/1",
    "VALKEYS://host/0",
    "unix:///run/store.sock?db=2",
    "unix://user:pw@/run/store.sock",
)


@pytest.mark.parametrize("url", TAKEN)
def test_a_url_that_the_settings_take_is_taken_by_the_redis_client_and_by_kombu(url: str) -> None:
    ours = store_url(url)
    with redis.Redis.from_url(ours) as client:
        assert client.connection_pool.connection_kwargs.get("db", 0) == {"3": 3, "1": 1, "2": 2}.get(url[-1], 0)
    assert parse_url(broker_url(ours))["transport"] in ("redis", "rediss", "redis+socket")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sentinel://host:26379", "name the primary"),
        ("redis+socket:///run/store.sock", "unix:///path/to/the.sock"),
        ("http://host", "must start with redis://"),
        ("localhost:6379", "must start with redis://"),
        ("redis://", "must start with redis://"),
        ("redis://host:secret/0", "the port must be a number"),
        ("redis://host:6379/jobs", "number of a database"),
        ("unix://run/store.sock", "whole path"),
    ],
)
def test_another_url_is_refused_in_one_sentence_that_leaves_it_out(url: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings.load(None, {"PENSTOCK_REDIS_URL": url})
    assert told in str(refused.value)
    assert url == "redis://" or url not in str(refused.value)


def test_a_store_that_waits_for_a_replica_is_one_of_ones_own() -> None:
    with pytest.raises(ConfigError, match="replicated") as refused:
        Settings.load(env={"PENSTOCK_STORE__DURABILITY": "replicated"})
    assert any("the embedded store has no replica" in fault for fault in refused.value.faults)
    url = {"PENSTOCK_REDIS_URL": "redis://store:6379"}
    assert Settings.load(env={"PENSTOCK_STORE__DURABILITY": "replicated", **url}).store.durability == "replicated"
