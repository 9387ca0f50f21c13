"""What the answers of sentinels say together, and when a write that not all replicas confirmed may be acknowledged."""

from __future__ import annotations

from penstock.broker.store.links.sentinel import SentinelView, view_of
from penstock.broker.store.links.topology import Node

OLD, NEW = Node("10.0.0.1", 6379), Node("10.0.0.2", 6379)


def answer(node: Node = OLD, *, epoch: int = 4, flags: str = "master", replicas: int = 2, others: int = 2) -> dict[str, str]:
    return {
        "ip": node.host,
        "port": str(node.port),
        "flags": flags,
        "config-epoch": str(epoch),
        "num-slaves": str(replicas),
        "num-other-sentinels": str(others),
    }


def certain(*answers: dict[str, str], doubted: Node | None = None) -> Node | None:
    view = view_of(answers, doubted)
    return view.primary if view.is_certain else None


def test_sentinels_that_all_reach_the_primary_are_certain() -> None:
    found = view_of([answer(), answer(), answer(replicas=3)])
    assert found == SentinelView(OLD, 3, is_reached=True, is_doubted=False, is_certain=True)


def test_most_of_the_sentinels_are_enough_and_half_of_them_are_not() -> None:
    assert certain(answer(), answer()) == OLD
    assert certain(answer()) is None
    assert certain(answer(others=3), answer(others=3)) is None


def test_one_that_does_not_reach_the_primary_or_replaces_it_is_a_doubt() -> None:
    for flags in ("s_down,master", "master,o_down", "master,failover_in_progress"):
        found = view_of([answer(), answer(), answer(flags=flags)])
        assert (found.primary, found.is_reached, found.is_doubted, found.is_certain) == (OLD, True, True, False)
    assert not view_of([answer(flags="s_down,master")]).is_reached


def test_the_newest_configuration_counts_and_what_a_sentinel_thinks_that_has_not_heard_of_it_does_not() -> None:
    assert certain(answer(flags="s_down,master"), answer(NEW, epoch=5), answer(NEW, epoch=5)) == NEW
    assert certain(answer(), answer(), answer(NEW, epoch=5)) == NEW


def test_a_sentinel_that_replaces_the_primary_names_the_old_one_under_the_new_number() -> None:
    replacing = answer(epoch=5, flags="s_down,master,failover_in_progress")
    assert certain(replacing, answer(NEW, epoch=5), answer(NEW, epoch=5)) == NEW
    assert certain(replacing, answer(), answer()) is None


def test_a_doubt_lasts_where_the_sentinel_that_may_replace_the_primary_is_silent() -> None:
    assert certain(answer(), answer(), doubted=OLD) is None
    assert certain(answer(), answer(), answer(), doubted=OLD) == OLD
    assert certain(answer(NEW, epoch=5), answer(NEW, epoch=5), doubted=OLD) == NEW
