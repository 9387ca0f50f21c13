from __future__ import annotations

from typing import Any

import pytest
import redis
from kombu.connection import Connection

from penstock.broker.celery_app import build_app
from penstock.broker.celery_connection import broker_url, celery_connection
from penstock.broker.store.connection import connect
from penstock.broker.store.links.sentinel import asking
from penstock.errors import ConfigError
from penstock.settings.store_url import StoreKind, parse_store_url, store_url, without_secrets
from penstock.settings.tables import Settings

TAKEN = (
    "redis://localhost",
    "redis://user:p%40ss@host:6379/3",
    "redis://host?db=3",
    "redis://[::1]:6379/0",
    "rediss://host:6380/0?ssl_ca_certs=/etc/ca.pem",
    "valkey://user:pw@host:6379/1",
    "VALKEYS://host/0",
    "unix:///run/store.sock?db=2",
    "unix://user:pw@/run/store.sock",
)


@pytest.mark.parametrize("url", TAKEN)
def test_a_url_that_the_settings_take_is_taken_by_the_redis_client_and_by_kombu(url: str) -> None:
    ours, found = store_url(url), parse_store_url(url)
    with redis.Redis.from_url(ours) as client:
        theirs = client.connection_pool.connection_kwargs
    assert theirs.get("db", 0) == found.database == {"3": 3, "1": 1, "2": 2}.get(url[-1], 0)
    assert (theirs.get("username") or "", theirs.get("password") or "") == (found.username, found.password)
    assert (theirs.get("path") or "") == found.path
    if found.hosts:
        assert [(theirs.get("host", "localhost"), theirs.get("port", 6379))] == list(found.hosts)
    kombus: Any = Connection(broker_url(ours))  # type: ignore[no-untyped-call]
    assert kombus.transport_cls in ("redis", "rediss")


def test_sentinels_are_asked_for_the_primary_with_logins_of_their_own() -> None:
    url = "valkeys+sentinel://user:p%2Fw@one,two:26380/main/2?sentinel_username=asks&sentinel_password=its&ssl_ca_certs=/ca.pem"
    found = parse_store_url(store_url(url))
    assert (found.kind, found.tls, found.service, found.database) == (StoreKind.SENTINEL, True, "main", 2)
    assert found.hosts == (("one", 26379), ("two", 26380))
    with connect(store_url(url)) as client:
        pool = client.connection_pool
    assert pool.connection_kwargs["password"] == "p/w"
    assert pool.connection_kwargs["ssl_ca_certs"] == "/ca.pem"
    asked = asking(found)
    assert (asked["username"], asked["password"], asked["ssl_ca_certs"]) == ("asks", "its", "/ca.pem")
    celery = celery_connection(store_url(url))
    assert celery.url == "sentinel://user:p%2Fw@one:26379/2;sentinel://user:p%2Fw@two:26380/2"
    assert celery.options["master_name"] == "main"
    assert celery.options["sentinel_kwargs"]["password"] == "its"
    assert celery.tls == {"ssl_ca_certs": "/ca.pem", "ssl_cert_reqs": "required", "ssl_check_hostname": True}


def test_a_cluster_is_named_by_some_of_its_nodes_and_celery_is_not_sent_there() -> None:
    found = parse_store_url(store_url("valkeys+cluster://user:pw@one,two:7001?ssl_ca_certs=/ca.pem"))
    assert (found.kind, found.tls, found.hosts) == (StoreKind.CLUSTER, True, (("one", 6379), ("two", 7001)))
    assert celery_connection("redis+cluster://one").url == "memory://"
    with pytest.raises(ConfigError, match="Celery cannot use a cluster"):
        Settings.load(env={"PENSTOCK_REDIS_URL": "redis+cluster://one", "PENSTOCK_STORE__CELERY_URL": "redis+cluster://one"})
    settings = Settings.load(env={"PENSTOCK_REDIS_URL": "redis+cluster://one", "PENSTOCK_STORE__CELERY_URL": "valkey://two"})
    assert build_app(settings).conf.broker_url == "redis://two:6379/0"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"ssl_cert_reqs": "required", "ssl_check_hostname": True}),
        ("?ssl_cert_reqs=none", {"ssl_cert_reqs": "none", "ssl_check_hostname": False}),
        ("?ssl_check_hostname=false", {"ssl_cert_reqs": "required", "ssl_check_hostname": False}),
    ],
)
def test_certificates_are_checked_unless_the_url_says_otherwise(query: str, expected: dict[str, object]) -> None:
    url = store_url(f"rediss://host{query}")
    # Kombu alone would look at no certificate at all.
    assert celery_connection(url).tls == expected
    with connect(url) as client:
        given = client.connection_pool.connection_kwargs
    assert {name: given[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sentinel://host:26379", "write redis+sentinel://HOST:26379,HOST:26379/NAME"),
        ("redis+sentinel://sentry:26379", "must end with the name of the primary"),
        ("redis+socket:///run/store.sock", "unix:///path/to/the.sock"),
        ("amqp://host", "RabbitMQ keeps none"),
        ("http://host", "must start with redis://"),
        ("localhost:6379", "must start with redis://"),
        ("redis://", "must start with redis://"),
        ("redis://host:secret/0", "the port must be a number"),
        ("redis://host:70000/0", "the port must be a number"),
        ("redis://host:6379/jobs", "number of a database"),
        ("redis://one:6379,two:6379", "names several servers"),
        ("redis://host?protocol=3", "has the option protocol, and takes db"),
        ("redis://host?ssl_ca_certs=/ca.pem", "for TLS write rediss"),
        ("rediss://host?ssl_cert_reqs=CERT_NONE", "one of none, optional, required"),
        ("rediss://host?ssl_check_hostname=no", "true or false"),
        ("redis+sentinel://host/main?min_other_sentinels=2", "takes db, sentinel_username, sentinel_password"),
        ("rediscluster://host", "write redis+cluster://HOST:6379"),
        ("redis+cluster://host/1", "by its database 0 alone"),
        ("redis+cluster://host?db=1", "has the option db, and takes none"),
        ("unix://run/store.sock", "whole path"),
    ],
)
def test_another_url_is_refused_in_one_sentence_that_leaves_it_out(url: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings.load(None, {"PENSTOCK_REDIS_URL": url})
    assert told in str(refused.value)
    assert url == "redis://" or url not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:6379/0", "redis://host:6379/0"),
        ("redis+sentinel://u:secret@a,b/main?sentinel_password=secret", "redis+sentinel://a,b/main"),
        ("unix://user:secret@/run/store.sock?db=2", "unix:///run/store.sock"),
    ],
)
def test_a_url_is_shown_without_what_must_stay_secret(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
    assert "secret" not in repr(parse_store_url(url))


def test_a_store_that_waits_for_a_replica_is_one_of_ones_own() -> None:
    with pytest.raises(ConfigError, match="replicated") as refused:
        Settings.load(env={"PENSTOCK_STORE__DURABILITY": "replicated"})
    assert any("the embedded store has no replica" in fault for fault in refused.value.faults)
    url = {"PENSTOCK_REDIS_URL": "redis://store:6379"}
    assert Settings.load(env={"PENSTOCK_STORE__DURABILITY": "replicated", **url}).store.durability == "replicated"


@pytest.mark.parametrize(
    ("variables", "replicas"),
    [
        ({}, 0),
        ({"PENSTOCK_STORE__REQUIRE": "fsync"}, None),
        ({"PENSTOCK_STORE__REQUIRE": "fsync", "PENSTOCK_STORE__DURABILITY": "replicated"}, 1),
    ],
)
def test_an_answer_is_safe_at_once_only_on_a_single_disk_that_must_sync_each_write(
    variables: dict[str, str], replicas: int | None
) -> None:
    url = {"PENSTOCK_REDIS_URL": "redis://127.0.0.1:1"}
    assert Settings.load(env={**url, **variables}).store.confirming == replicas
