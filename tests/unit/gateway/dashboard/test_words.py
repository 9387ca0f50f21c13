"""Numbers and moments as the pages write them."""

from __future__ import annotations

import pytest

from penstock.gateway.dashboard import words


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "–"), (0.0, "0 s"), (-1.0, "0 s"), (12e-6, "12 µs"), (0.0003, "0.3 ms"), (0.0125, "12 ms"), (0.32, "320 ms"),
        (0.9996, "1.0 s"), (4.24, "4.2 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (200.0, "3 min 20 s"),
        (7500.0, "2 h 5 min"), (86_400.0, "1 d"), (90_000.0, "1 d 1 h"),
    ],
)  # fmt: skip
def test_durations_have_the_unit_that_fits_them(value: float | None, told: str) -> None:
    assert words.seconds(value) == told


@pytest.mark.parametrize(
    ("value", "told"), [(None, "–"), (0.0, "0.0"), (0.25, "0.25"), (4.24, "4.2"), (99.96, "100.0"), (1300.0, "1,300")]
)
def test_rates_have_few_digits(value: float | None, told: str) -> None:
    assert words.rate(value) == told


def test_counts_sizes_moments_and_cores_are_short() -> None:
    assert [words.count(n) for n in (0, 1234, 1_250_000)] == ["0", "1,234", "1.2 M"]
    assert [words.size(n) for n in (9, 4_300, 32 * 1024**2)] == ["9 B", "4.2 KiB", "32 MiB"]
    assert [words.plural(n, "crash", "crashes") for n in (1, 2)] == ["1 crash", "2 crashes"]
    assert [words.ago(at, 100.0) for at in (None, 99.9, 90.0)] == ["–", "just now", "10 s ago"]
    assert words.moment(0.0) == "1970-01-01 00:00:00 UTC"
    assert [words.cores(held) for held in ((), (3,), (8, 0, 1, 2))] == ["–", "3", "0-2, 8"]
