from __future__ import annotations

from typing import Any

from penstock.handlers.runtimes.onnx.profile import operators, recorded


def _run(ts: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": 10}


def _node(ts: int, dur: int, operator: str, provider: str = "CPUExecutionProvider") -> dict[str, Any]:
    return {
        "cat": "Node",
        "name": f"n{ts}_kernel_time",
        "ts": ts,
        "dur": dur,
        "args": {"op_name": operator, "provider": provider},
    }


def test_of_every_two_calls_the_second_one_is_kept() -> None:
    loading = {"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 50}
    calls = [_run(100), _run(200), _run(300), _run(400)]
    nodes = [_node(ts, 5, "Conv") for ts in (101, 201, 301, 401)]
    assert [event["ts"] for event in recorded([loading, *nodes, *calls])] == [201, 401, 200, 400]


def test_operators_are_added_up_and_the_costliest_comes_first() -> None:
    lines = operators([_node(1, 1_000, "Gemm"), _node(2, 2_000, "Conv"), _node(3, 1_000, "Conv")]).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["Conv", "2", "3.000", "75.0%", "CPUExecutionProvider"],
        ["Gemm", "1", "1.000", "25.0%", "CPUExecutionProvider"],
    ]
