from __future__ import annotations

import pytest
import redis
from redis.exceptions import MovedError, TryAgainError

from penstock.broker.server.health import StoreHealth, worst_health
from penstock.broker.store import ops, registry
from penstock.broker.store.links.topology import ClusterView, Node, beside, guarded, key_of, parse_topology, slot_of
from penstock.broker.store.ops import prefix, queue_name
from penstock.extensions.celery_clients import ops as celery_ops

A, B, C = Node("a", 1), Node("b", 2), Node("c", 3)
REPLY = [[0, 99, [b"a", 1, b"id", []], [b"c", 3, b"id", []]], [100, 16_383, [b"b", 2, b"id", []]]]


def known(now: float = 0.0) -> ClusterView:
    view = ClusterView()
    view.learn(parse_topology(REPLY, A), now)
    return view


def test_each_slot_has_its_primary_and_replicas_serve_none() -> None:
    found = parse_topology(REPLY, A)
    assert (found.owner(0), found.owner(99), found.owner(100)) == (A, A, B)
    assert (found.primaries, found.replicas) == ((A, B), (C,))


def test_a_node_that_does_not_know_its_name_has_that_under_which_it_was_asked() -> None:
    assert parse_topology([[0, 1, [None, 7, b"id"]]], Node("store.example", 1)).owner(1) == Node("store.example", 7)


def test_a_node_that_moved_a_slot_is_believed_and_the_others_are_asked_soon() -> None:
    view = known()
    view.on_untaken(MovedError("100 c:3"), B, 1.0)
    assert view.topology is not None
    assert (view.topology.owner(100), view.topology.owner(101)) == (C, B)
    assert view.is_due(1.0)
    assert view.changed_at == 1.0


def test_nodes_are_not_asked_again_at_once_however_many_calls_fail() -> None:
    view = known(now=1.0)
    view.forget()
    assert not view.is_due(1.01)
    assert view.is_due(2.0)


def test_to_try_again_is_no_reason_to_ask_who_serves_what() -> None:
    view = known()
    view.on_untaken(TryAgainError("Multiple keys request during rehashing of slot"), A, 1.0)
    assert not view.is_due(9.0)


def test_the_first_look_is_no_change() -> None:
    view = known(now=5.0)
    assert view.changed_at < 0
    view.learn(parse_topology(REPLY[:1], A), 6.0)
    assert view.changed_at == 6.0


def test_a_key_that_nobody_serves_is_a_lost_connection() -> None:
    view = ClusterView()
    view.learn(parse_topology(REPLY[:1], A), 0.0)
    with pytest.raises(redis.ConnectionError, match="no node"):
        view.owner("key")


def test_what_goes_with_a_queue_lies_in_its_slot() -> None:
    for queue in ("m", "m:3"):
        call = ops.stats(queue).words("x")
        slot = slot_of(prefix(queue))
        assert slot_of(key_of(call)) == slot_of(queue_name(queue)) == slot
        assert slot_of(beside("replicated", key_of(call))) == slot
        assert {slot_of(str(key)) for key in guarded(call)[3:5]} == {slot}


def test_calls_of_functions_name_two_keys_and_plain_commands_one() -> None:
    words = guarded(registry.identity("n").words("x"))
    assert words[2:5] == (2, "ps:store", "ps:absent:{ps:store}")
    assert slot_of("ps:absent:{ps:store}") == slot_of("ps:store")
    assert guarded(celery_ops.await_message(1.0).words) == celery_ops.await_message(1.0).words


def test_the_registry_and_its_clock_are_at_one_node() -> None:
    keys = (registry.MODELS_KEY, registry.WORKERS_KEY, registry.ROLLOUTS_KEY, registry.REGISTRY + "edition")
    assert {slot_of(key) for key in keys} == {slot_of(key_of(registry.clock().words))}


def test_a_store_is_as_well_as_its_worst_node() -> None:
    well, full = StoreHealth(1, 10, 5, persistence_ok=True), StoreHealth(9, 10, 5, persistence_ok=False)
    assert worst_health([well, full]) == StoreHealth(9, 10, 10, persistence_ok=False)
