"""Numbers, sizes, durations and moments as pages, reports and the command line write them."""

from __future__ import annotations

import pytest

from penstock import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"), (0.0, "0 s"), (-1.0, "0 s"), (12e-6, "12 µs"), (0.0003, "0.3 ms"), (0.0125, "12 ms"), (0.32, "320 ms"),
        (0.9996, "1.0 s"), (4.24, "4.2 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (200.0, "3 min 20 s"),
        (7500.0, "2 h 5 min"), (86_400.0, "1 d"), (90_000.0, "1 d 1 h"),
    ],
)  # fmt: skip
def test_durations_have_the_unit_that_fits_them(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.0421, "0.0421"), (0.25, "0.25"), (4.207, "4.21"), (99.96, "100"), (421.4, "421"), (42_100.0, "42,100")],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert words.number(value) == text


def test_an_unknown_value_is_a_dash() -> None:
    assert words.number(float("nan")) == words.UNKNOWN
    for function in (words.number, words.percent, words.per_second, words.size, words.milliseconds, words.duration):
        assert function(None) == words.UNKNOWN
    assert words.ago(None, 100.0) == words.ranges([]) == words.UNKNOWN


def test_figures_carry_their_unit() -> None:
    assert words.percent(0.421) == "42.1 %"
    assert words.per_second(1_300) == "1,300/s"
    assert words.milliseconds(0.421) == "0.421 ms"


def test_sizes_have_the_unit_that_fits_them() -> None:
    sizes = (9, 4_300, 32 * 1024**2, 2.5 * 1024**3, 3 * 1024**4)
    assert [words.size(size) for size in sizes] == ["9 B", "4.2 KiB", "32 MiB", "2.5 GiB", "3 TiB"]


def test_counts_are_grouped_and_agree_with_their_noun() -> None:
    assert [words.count(n) for n in (0, 1234, 1_250_000)] == ["0", "1,234", "1.2 M"]
    assert [words.plural(n, "crash", "crashes") for n in (1, 2)] == ["1 crash", "2 crashes"]
    assert words.plural(1_234, "job") == "1,234 jobs"


def test_moments_and_cores_are_short() -> None:
    assert [words.ago(at, 100.0) for at in (99.9, 90.0)] == ["just now", "10 s ago"]
    assert words.moment(0.0) == "1970-01-01 00:00:00 UTC"
    assert [words.ranges(numbers) for numbers in ((3,), (8, 0, 1, 2))] == ["3", "0-2, 8"]
