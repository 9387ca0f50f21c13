from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.onnx.session import ENTRIES, fallen, flattened, session_config, session_options, spinning


def test_given_names_win_over_our_defaults() -> None:
    config = session_config({}, threads=3, spin={"session.intra_op.allow_spinning": "0"})
    assert config.attributes == {"intra_op_num_threads": 3, "inter_op_num_threads": 1}
    assert config.entries == {"session.intra_op.allow_spinning": "0"}
    own = session_config({"intra_op_num_threads": 1, "session.intra_op.allow_spinning": True}, threads=3, spin={"x": "0"})
    assert own.attributes["intra_op_num_threads"] == 1
    assert own.entries == {"session.intra_op.allow_spinning": "1"}


def test_a_dotted_name_may_be_written_as_tables() -> None:
    assert flattened({"cuda": {"gpu_mem_limit": 1}, "a": {"b": {"c": 2}}}) == {"cuda.gpu_mem_limit": 1, "a.b.c": 2}
    config = session_config({"cuda": {"gpu_mem_limit": 1 << 30}, "tensorrt.trt_sparsity_enable": True}, threads=1, spin={})
    assert config.provider_options == {"cuda": {"gpu_mem_limit": "1073741824"}, "tensorrt": {"trt_sparsity_enable": "1"}}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"graph_optimisation_level": "all"}, "did you mean graph_optimization_level"),
        ({"graph_optimization_level": "most"}, "must be one of disabled, basic, extended, layout, all, not 'most'"),
        ({"session.intra_op.allow_spining": "1"}, r"did you mean session\.intra_op\.allow_spinning"),
        ({"cuda": {"gpu_memory_limit": 1}}, r"did you mean cuda\.gpu_mem_limit"),
        ({"enable_mem_pattern": "yes"}, "must be true or false, not 'yes'"),
        ({"intra_op_num_threads": -1}, "whole number from 0 to 1024, not -1"),
        ({"log_severity_level": True}, "whole number from 0 to 4, not True"),
        ({"session.disable_prepacking": [1]}, "must be text, a number, true or false"),
        ({"zzz": 1}, r"zzz is not known here; docs/reference/runtimes\.md"),
    ],
)
def test_a_name_or_value_that_is_wrong_is_told_with_what_was_meant(table: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words):
        session_config(table, threads=1, spin={})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"tensorrt": {"trt_cuda_graph_enable": True}}, "would return the first result for ever, without an error"),
        ({"memory.enable_memory_arena_shrinkage": "gpu:0"}, "an option of a run and no entry of a session"),
    ],
)
def test_an_option_that_would_do_harm_or_nothing_is_refused_with_the_reason(table: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words):
        session_config(table, threads=1, spin={})


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(HandlerLoadError, match=r"execution_mode must be .*; enable_mem_reuse must be"):
        session_config({"execution_mode": "fast", "enable_mem_reuse": 3}, threads=1, spin={})


@pytest.mark.parametrize(
    ("threads", "cores", "version", "entry"),
    [
        (4, 4, "1.31.1", ("session.intra_op.spin_duration_us", "50")),
        (4, 8, "1.31.1", ("session.intra_op.allow_spinning", "0")),
        (4, 4, "1.23.0", ("session.intra_op.allow_spinning", "0")),
        (1, 1, "1.31.1", ("session.intra_op.allow_spinning", "0")),
    ],
)
def test_threads_spin_shortly_and_only_on_cores_of_their_own(
    threads: int, cores: int, version: str, entry: tuple[str, str]
) -> None:
    assert spinning(threads=threads, usable_cores=cores, version=version) == dict([entry])


def test_the_options_reach_onnxruntime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    table = {
        "graph_optimization_level": "basic",
        "execution_mode": "parallel",
        "enable_mem_pattern": False,
        "session.set_denormal_as_zero": True,
    }
    options = session_options(onnxruntime, session_config(table, threads=2, spin={}))
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert (options.intra_op_num_threads, options.enable_mem_pattern) == (2, False)
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"


def test_every_entry_known_here_is_known_to_the_library() -> None:
    """ONNX Runtime accepts any name, so nothing else would notice a misspelt name in our list."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from pathlib import Path

    (binary,) = (Path(onnxruntime.__path__[0]) / "capi").glob("onnxruntime_pybind11_state*")
    content = binary.read_bytes()
    assert [name for name in sorted(ENTRIES) if name.encode() + b"\0" not in content] == []


def test_nodes_that_run_elsewhere_are_counted_and_none_at_all_is_refused() -> None:
    assigned = [("CUDAExecutionProvider", ["Conv", "Relu"]), ("CPUExecutionProvider", ["Shape", "Shape"])]
    assert fallen(assigned, ["CUDAExecutionProvider"]) == {"Shape": 2}
    assert fallen(assigned[:1], ["TensorrtExecutionProvider", "CUDAExecutionProvider"]) == {}
    with pytest.raises(HandlerLoadError, match=r"runs none of the model's 2 nodes \(Shape\)"):
        fallen(assigned[1:], ["CUDAExecutionProvider"])
