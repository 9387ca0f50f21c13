from __future__ import annotations

import pytest

from benchmarks.peers.catalogue import PEERS, peers_named
from benchmarks.peers.rotation import doubts, figures, quickest_batch, steps
from benchmarks.peers.turn import Turn
from benchmarks.peers.workloads import WORKLOADS, workloads_named
from penstock.errors import BadRequest

NOOP, ACCELERATOR, EMBEDDINGS = WORKLOADS


def turn(batch: int, rps: float, *, lone: float = 2.0, foreign: float = 0.0, errors: dict[str, int] | None = None) -> Turn:
    return Turn(batch, rps, 10.0, 20.0, lone, errors=errors or {}, foreign_share=foreign)


def test_every_round_goes_through_all_servers_and_only_the_first_tries_every_size() -> None:
    two = peers_named("mosec,ray")
    found = [(peer.name, batch) for _, peer, batch in steps([EMBEDDINGS], two, 2, lambda key: 4)]
    assert found == [("mosec", 4), ("mosec", 32), ("ray", 4), ("ray", 32), ("mosec", 4), ("ray", 4)]


def test_a_server_that_failed_everywhere_has_no_turn_in_later_rounds() -> None:
    found = [peer.name for _, peer, _ in steps([ACCELERATOR], peers_named("mosec,ray"), 2, lambda key: 32 * (key[0] == "ray"))]
    assert found == ["mosec", "ray", "ray"]


def test_a_server_without_batches_is_tried_once() -> None:
    assert [batch for _, _, batch in steps(WORKLOADS, peers_named("celery"), 1, lambda key: 0)] == [1, 1, 1]


def test_the_quickest_size_is_that_of_the_highest_median() -> None:
    assert quickest_batch([]) == 0
    assert quickest_batch([turn(4, 150.0), turn(32, 90.0)]) == 4
    assert quickest_batch([turn(4, 150.0), turn(4, 50.0), turn(4, 60.0), turn(32, 90.0)]) == 32


def test_figures_are_medians_over_the_kept_size_and_errors_add_up() -> None:
    turns = [
        turn(4, 100.0, lone=1.0, errors={"503": 2}),
        turn(32, 50.0),
        turn(4, 120.0, lone=3.0, errors={"503": 1, "lost": 1}),
    ]
    found = figures(turns)
    assert (found["batch"], found["rps"], found["lone_p50_ms"]) == (4, 110.0, 2.0)
    assert found["errors"] == {"503": 3, "lost": 1}
    assert found["rounds_rps"] == [100.0, 120.0]
    assert found["tried_rps"] == {"32": 50.0}
    assert "open_p99_ms" not in found


def test_a_machine_shared_with_others_makes_a_figure_doubtful() -> None:
    assert doubts("mosec, noop", [turn(32, 1.0, foreign=0.05)]) == []
    assert "30%" in doubts("mosec, noop", [turn(32, 1.0, foreign=0.3)])[0]


def test_names_choose_and_unknown_ones_are_refused() -> None:
    assert peers_named("all") == list(PEERS)
    assert [peer.name for peer in peers_named("ray, mosec")] == ["mosec", "ray"]
    with pytest.raises(BadRequest, match="rai"):
        peers_named("rai")
    assert workloads_named("all") == list(WORKLOADS)
    with pytest.raises(BadRequest, match="nop"):
        workloads_named("nop")
