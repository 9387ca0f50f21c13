"""The cost and gain of spinning threads in ONNX Runtime: time of a call, and CPU time used for it.

`python -m benchmarks.experiments.onnx_spinning [--threads 2] [--pause-ms 5]`; needs the extra `test` (it builds a model).
A pause stands for the gap between two batches, in which spinning threads take cores from other processes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

_WAITS: dict[str, dict[str, str]] = {
    "as the library has it": {"session.intra_op.allow_spinning": "1"},
    "50 us": {"session.intra_op.spin_duration_us": "50"},
    "not at all": {"session.intra_op.allow_spinning": "0"},
}
_WIDTH, _LAYERS, _BATCH = 256, 12, 8
_CALLS, _WARM_CALLS = 200, 20


def _model() -> bytes:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    names = ["x", *(f"layer{number}" for number in range(_LAYERS))]
    weights = [
        numpy_helper.from_array((rng.standard_normal((_WIDTH, _WIDTH)) / _WIDTH**0.5).astype(np.float32), f"w{number}")
        for number in range(_LAYERS)
    ]
    nodes = [helper.make_node("MatMul", [names[at], f"w{at}"], [names[at + 1]]) for at in range(_LAYERS)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", _WIDTH]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "spinning", ends[:1], ends[1:], weights)
    serialized: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    return serialized


def _session(model: bytes, threads: int, entries: Mapping[str, str]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _measured(session: Any, pause_s: float) -> tuple[float, float]:
    """The median time of a call, and the CPU time per call with pauses, in milliseconds."""
    import numpy as np

    feed = {"x": np.random.default_rng(1).standard_normal((_BATCH, _WIDTH)).astype(np.float32)}
    for _ in range(_WARM_CALLS):
        session.run(None, feed)
    times, cpu_s = [], time.process_time()
    for _ in range(_CALLS):
        began = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - began)
        time.sleep(pause_s)
    return sorted(times)[_CALLS // 2] * 1e3, (time.process_time() - cpu_s) / _CALLS * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pause-ms", type=float, default=5.0)
    asked = parser.parse_args()
    model = _model()
    for pause_s in (0.0, asked.pause_ms / 1e3):
        for name, entries in _WAITS.items():
            took_ms, cpu_ms = _measured(_session(model, asked.threads, entries), pause_s)
            print(f"pause {pause_s * 1e3:g} ms, spins {name + ':':<23} {took_ms:.3f} ms a call, {cpu_ms:.3f} ms of CPU")


if __name__ == "__main__":
    main()
