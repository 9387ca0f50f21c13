"""The benchmark of runs, with real processes and few rows, gives plausible figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.bulk import __main__ as bulk
from benchmarks.bulk.__main__ import CHEAP, BulkSession, Scale
from benchmarks.bulk.environment import BenchEnvironment, bench_environment
from penstock.errors import PenstockError

pytest.importorskip("pyarrow")
SMALL = Scale(texts=0, images=0, numbers=2_000, memory=(1_000, 2_000), seconds=0.5, rounds=1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BenchEnvironment]:
    with bench_environment(tmp_path_factory.mktemp("stack"), [CHEAP]) as opened:
        yield opened


def test_a_run_is_timed_and_its_rows_are_all_there(
    place: BenchEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    # The session measures on the stack that is there instead of one of its own.
    monkeypatch.setattr(bulk, "bench_environment", lambda folder, models: nullcontext(place))
    figures = BulkSession(tmp_path, SMALL).cheap()
    assert figures["cheap_rows_per_s"] > 100
    outputs = pq.read_table(tmp_path / "numbers.out.parquet").column("output").to_pylist()
    assert [row["y"] for row in outputs] == [x * x for x in range(2_000)]


def test_a_run_that_fails_is_no_figure(place: BenchEnvironment, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="ended"):
        place.run(CHEAP.name, tmp_path / "absent.jsonl", tmp_path / "out.jsonl")
