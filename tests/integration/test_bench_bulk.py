"""The benchmark of runs, with real processes and few rows, gives plausible figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bulk.__main__ import CHEAP, BulkSession, Scale
from benchmarks.bulk.environment import bench_environment

pytest.importorskip("pyarrow")
SMALL = Scale(texts=0, images=0, numbers=2_000, memory=(1_000, 2_000), seconds=0.5, rounds=1)


def test_a_run_is_timed_and_its_rows_are_all_there(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    figures = BulkSession(tmp_path, SMALL).cheap()
    assert figures["cheap_rows_per_s"] > 100
    outputs = pq.read_table(tmp_path / "numbers.out.parquet").column("output").to_pylist()
    assert [row["y"] for row in outputs] == [x * x for x in range(2_000)]


def test_a_run_that_fails_is_no_figure(tmp_path: Path) -> None:
    from penstock.errors import PenstockError

    (tmp_path / "numbers.jsonl").write_text('{"x": 1}\n')
    with bench_environment(tmp_path / "stack", [CHEAP]) as place, pytest.raises(PenstockError, match="ended"):
        place.run(CHEAP.name, tmp_path / "absent.jsonl", tmp_path / "out.jsonl")
