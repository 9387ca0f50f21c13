from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.catalogue import PEERS, chosen, peers_named
from benchmarks.peers.comparison import Progress
from benchmarks.peers.rotation import doubts, figures, most_turns, quickest_batch, steps
from benchmarks.peers.server import Launch
from benchmarks.peers.turn import LoadLengths, Spent, Turn, warm_up_s
from benchmarks.peers.workloads import WORKLOADS, workloads_named
from penstock.errors import BadRequest
from penstock.loadtest.observed.costs import MachineReading

NOOP, ACCELERATOR, ACCELERATOR_100K, EMBEDDINGS = WORKLOADS


def turn(batch: int, rps: float, *, lone: float = 2.0, foreign: float = 0.0, errors: dict[str, int] | None = None) -> Turn:
    return Turn(batch, rps, 10.0, 20.0, lone, errors=errors or {}, foreign_share=foreign, cpu_us=1e4 / rps, memory_mib=rps / 10)


def test_every_round_goes_through_all_servers_and_only_the_first_tries_every_size() -> None:
    two = peers_named("mosec,ray")
    found = [(peer.name, batch) for _, peer, batch in steps([EMBEDDINGS], two, 2, lambda key: 4)]
    assert found == [("mosec", 4), ("mosec", 32), ("ray", 4), ("ray", 32), ("mosec", 4), ("ray", 4)]


def test_a_server_that_failed_everywhere_has_no_turn_in_later_rounds() -> None:
    found = [peer.name for _, peer, _ in steps([ACCELERATOR], peers_named("mosec,ray"), 2, lambda key: 32 * (key[0] == "ray"))]
    assert found == ["mosec", "ray", "ray"]


def test_a_server_without_batches_is_tried_once_and_not_at_all_where_it_takes_no_part() -> None:
    found = [(workload.name, batch) for workload, _, batch in steps(WORKLOADS, peers_named("celery"), 1, lambda key: 0)]
    assert found == [("noop", 1), ("accelerator", 1), ("embeddings", 1)]


def test_penstock_finds_the_size_of_its_calls_itself_and_runs_the_handlers_of_ones_own_on_the_embeddings_alone() -> None:
    own = [peer for peer in PEERS if peer.is_own]
    found = [(peer.name, workload.name, batch) for workload, peer, batch in steps([NOOP, EMBEDDINGS], own, 1, lambda key: 0)]
    assert found == [
        ("penstock", "noop", 32),
        ("penstock", "embeddings", 32),
        ("penstock-cost", "embeddings", 32),
        ("penstock-plain", "embeddings", 32),
    ]


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_the_number_of_turns_is_known_before_the_first(rounds: int) -> None:
    taken = list(steps(WORKLOADS, PEERS, rounds, lambda key: 32))
    assert most_turns(WORKLOADS, PEERS, rounds) == len(taken)


def test_progress_says_how_long_all_turns_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.comparison.time.monotonic", lambda: 190.0)
    assert Progress(40, began_at=100.0).words(10) == "[10/40, 1:30 of about 6:00]"


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
    assert (found["cpu_us"], found["memory_mib"]) == (91.7, 11.0)
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


def test_only_names_servers_and_workloads_in_one_list_and_leaves_the_rest_open() -> None:
    assert chosen("") == (list(PEERS), list(WORKLOADS))
    peers, workloads = chosen("noop, penstock,mosec")
    assert ([peer.name for peer in peers], workloads) == (["penstock", "mosec"], [NOOP])
    assert chosen("accelerator_100k") == (list(PEERS), [ACCELERATOR_100K])
    with pytest.raises(BadRequest, match="nop"):
        chosen("nop,mosec")


def test_a_server_that_learns_is_warmed_up_for_longer_where_inputs_are_uneven() -> None:
    lengths, own, mosec = LoadLengths(warm_s=2.0, learn_s=12.0), *peers_named("penstock,mosec")
    found = {
        (peer.name, workload.name): warm_up_s(Launch(Path(), peer, workload, 32, 1, Path()), lengths)
        for peer in (own, mosec)
        for workload in (NOOP, EMBEDDINGS)
    }
    assert found.pop(("penstock", "embeddings")) == 12.0
    assert set(found.values()) == {2.0}


def test_what_other_processes_took_is_neither_the_servers_nor_the_clients() -> None:
    before = Spent(1.0, 1.0, MachineReading(10.0, 100.0))
    assert Spent(3.0, 2.0, MachineReading(14.0, 108.0)).foreign_share(before) == pytest.approx(1 / 8)
