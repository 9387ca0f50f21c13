"""Who gets which version: the same value the same version, shares as asked, and as few moves as possible when shares change."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Conflict
from penstock.extensions.splits.canary import Canary, CanaryState, Move, Verdict
from penstock.extensions.splits.split import MOST_DECISIONS, Shadow, Split, check_unused, chosen, kept_split, point_of, split_of
from penstock.rollout import Rollout

VALUES = [f"user-{number}" for number in range(4_000)]
shares = st.dictionaries(st.sampled_from("123456"), st.floats(0.5, 100.0), min_size=1, max_size=6)


def by_version(of: dict[str, float]) -> dict[str, str]:
    return {value: chosen(of, "m", value) for value in VALUES}


@given(st.text(), shares)
def test_a_value_gets_the_same_version_in_whatever_order_the_shares_stand(value: str, of: dict[str, float]) -> None:
    found = chosen(of, "m", value)
    assert found in of
    assert chosen(dict(reversed(of.items())), "m", value) == found


@settings(max_examples=15, deadline=None)
@given(shares)
def test_each_version_gets_its_share_of_the_values(of: dict[str, float]) -> None:
    counted, whole = Counter(by_version(of).values()), sum(of.values())
    for version, share in of.items():
        wanted = share / whole
        # Five standard deviations of so many draws.
        assert abs(counted[version] / len(VALUES) - wanted) < 5 * (wanted * (1 - wanted) / len(VALUES)) ** 0.5 + 1e-9


@settings(max_examples=15, deadline=None)
@given(shares, st.sampled_from("123456"), st.floats(1.01, 20.0))
def test_a_share_that_grows_takes_values_and_no_other_value_moves(of: dict[str, float], version: str, times: float) -> None:
    of = {version: 5.0, **of}
    before, after = by_version(of), by_version({**of, version: of[version] * times})
    assert {after[value] for value in VALUES if after[value] != before[value]} <= {version}


def test_a_version_without_a_share_gets_no_value() -> None:
    assert set(by_version({"1": 100.0, "2": 0.0}).values()) == {"1"}


@given(st.text())
def test_a_point_lies_between_0_and_1_and_is_neither(text: str) -> None:
    assert 0.0 < point_of(text) < 1.0


def test_models_divide_the_same_values_differently() -> None:
    of = {"1": 50.0, "2": 50.0}
    assert by_version(of) != {value: chosen(of, "other", value) for value in VALUES}


def test_a_canary_gets_its_step_and_the_others_the_rest_in_proportion() -> None:
    split = Split("s", {"1": 75.0, "3": 25.0}, canary=Canary("2", steps=(20.0, 100.0)))
    assert split.shares() == {"1": 60.0, "2": 20.0, "3": 20.0}


def test_a_canary_that_grows_moves_no_value_between_the_others() -> None:
    split = Split("s", {"1": 60.0, "3": 40.0}, canary=Canary("2", steps=(1.0, 25.0)))
    before = by_version(split.shares())
    after = by_version(split.moved(split.canary, Verdict(Move.UP, "good"), 1.0).shares())  # type: ignore[arg-type]
    assert {after[value] for value in VALUES if after[value] != before[value]} == {"2"}


def moved(split: Split, *moves: Move) -> Split:
    for number, move in enumerate(moves):
        assert split.canary is not None
        split = split.moved(split.canary, Verdict(move, f"reason {number}"), float(number))
    return split


def test_a_step_back_leaves_nothing_to_the_canary_and_keeps_the_reason() -> None:
    split = moved(Split("s", {"1": 100.0}, canary=Canary("2")), Move.UP, Move.BACK)
    assert split.shares() == {"1": 100.0, "2": 0.0}
    assert not split.is_deciding
    last = split.decisions[-1]
    assert (last.before, last.after, last.reason, last.at) == (5.0, 0.0, "reason 1", 1.0)


@pytest.mark.parametrize(
    ("steps", "state", "share"), [((50.0, 100.0), CanaryState.PROMOTED, 100.0), ((10.0, 50.0), CanaryState.KEPT, 50.0)]
)
def test_behind_its_last_step_a_canary_keeps_the_weight(steps: tuple[float, ...], state: CanaryState, share: float) -> None:
    canary = moved(Split("s", {"1": 100.0}, canary=Canary("2", steps=steps)), Move.UP, Move.UP).canary
    assert canary is not None
    assert (canary.state, canary.share) == (state, share)


def test_each_step_has_figures_of_its_own() -> None:
    split = Split("s", {"1": 100.0}, canary=Canary("2"))
    assert len({split.figures, moved(split, Move.UP).figures, moved(split, Move.UP, Move.BACK).figures}) == 3


def test_of_many_decisions_the_last_are_kept() -> None:
    steps = tuple(float(step) for step in range(1, 51))
    split = moved(Split("s", {"1": 100.0}, canary=Canary("2", steps=steps)), *[Move.UP] * 40)
    assert len(split.decisions) == MOST_DECISIONS
    assert split.decisions[-1].reason == "reason 39"


@pytest.mark.parametrize(
    "split",
    [
        Split("s", {"1": 90.0, "2": 10.0}, sticky="x-user"),
        moved(Split("s", {"1": 100.0}, shadow=Shadow("3", 5.0), canary=Canary("2")), Move.UP, Move.BACK),
    ],
)
def test_a_split_is_read_back_as_it_was_kept(split: Split) -> None:
    assert split_of(kept_split(split)) == split


def test_members_of_a_later_release_are_ignored() -> None:
    split = Split("s", {"1": 100.0})
    assert split_of({**kept_split(split), "later": 1}) == split


def test_a_reset_of_the_model_ends_its_split() -> None:
    rollout = Rollout().divide(kept_split(Split("s", {"1": 100.0})))
    assert rollout.changes
    assert rollout.reset((), {"1"}, 0.0).split == {}
    assert rollout.divide({}) == Rollout()


def test_a_split_outlives_other_changes_of_its_model() -> None:
    rollout = Rollout().divide(kept_split(Split("s", {"1": 100.0})))
    assert rollout.load("4", {}).unload("5", 1.0).switch("1").without({"5"}).split == rollout.split


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_a_version_that_a_split_needs_cannot_be_unloaded(version: str) -> None:
    kept = kept_split(Split("s", {"1": 100.0}, shadow=Shadow("3", 5.0), canary=Canary("2")))
    with pytest.raises(Conflict, match=f"version '{version}' has a part in the split") as refused:
        check_unused(kept, "m", version)
    assert "DELETE /v1/models/m/split" in (refused.value.hint or "")


def test_what_a_split_no_longer_needs_can_be_unloaded() -> None:
    promoted = moved(Split("s", {"1": 100.0}, canary=Canary("2", steps=(50.0, 100.0))), Move.UP, Move.UP)
    check_unused(kept_split(promoted), "m", "1")
    check_unused(kept_split(promoted), "m", "4")
    with pytest.raises(Conflict):
        check_unused(kept_split(promoted), "m", "2")
