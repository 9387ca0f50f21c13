"""Sets up an ONNX Runtime session: the `session` table, the providers' options, and the check of who really runs the nodes.

Names are checked here because ONNX Runtime accepts any configuration entry and ignores unknown ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from penstock.errors import HandlerLoadError

_CHOICES = {
    "graph_optimization_level": {
        "disabled": "ORT_DISABLE_ALL",
        "basic": "ORT_ENABLE_BASIC",
        "extended": "ORT_ENABLE_EXTENDED",
        "layout": "ORT_ENABLE_LAYOUT",
        "all": "ORT_ENABLE_ALL",
    },
    "execution_mode": {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"},
}
_TYPES = {"graph_optimization_level": "GraphOptimizationLevel", "execution_mode": "ExecutionMode"}
_SWITCHES = ("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "use_deterministic_compute")
_NUMBERS = {"inter_op_num_threads": 1024, "intra_op_num_threads": 1024, "log_severity_level": 4}
# Of onnxruntime_session_options_config_keys.h (1.31): the entries that tune a session. Entries that write files, that share
# state between the sessions of a process, or that belong to other providers are left out.
ENTRIES = frozenset(
    {
        "ep.cuda.fpa_intb_gemm",
        "mlas.disable_kleidiai",
        "mlas.qnbit.force_fp32",
        "mlas.use_lut_gemm",
        "optimization.constant_folding_max_output_size_in_bytes",
        "optimization.disable_specified_optimizers",
        "optimization.enable_cast_chain_elimination",
        "optimization.enable_gelu_approximation",
        "session.disable_aot_function_inlining",
        "session.disable_cpu_ep_fallback",
        "session.disable_double_qdq_remover",
        "session.disable_prepacking",
        "session.disable_quant_qdq",
        "session.dynamic_block_base",
        "session.enable_dq_matmulnbits_fusion",
        "session.enable_quant_qdq_cleanup",
        "session.force_spinning_stop",
        "session.graph_optimizations_loop_level",
        "session.inter_op.allow_spinning",
        "session.inter_op.spin_backoff_max",
        "session.inter_op.spin_duration_us",
        "session.intra_op.allow_spinning",
        "session.intra_op.spin_backoff_max",
        "session.intra_op.spin_duration_us",
        "session.intra_op_thread_affinities",
        "session.prepack.enable_parallel",
        "session.qdq_matmulnbits_accuracy_level",
        "session.qdqisint8allowed",
        "session.set_denormal_as_zero",
        "session.strict_shape_type_inference",
        "session.use_device_allocator_for_initializers",
        "session.x64quantprecision",
    }
)
_PROVIDER_OPTIONS = {
    "cuda": (
        "arena_extend_strategy",
        "cudnn_conv1d_pad_to_nc1d",
        "cudnn_conv_algo_search",
        "cudnn_conv_use_max_workspace",
        "do_copy_in_default_stream",
        "enable_skip_layer_norm_strict_mode",
        "fuse_conv_bias",
        "gpu_mem_limit",
        "prefer_nhwc",
        "sdpa_kernel",
        "tunable_op_enable",
        "tunable_op_max_tuning_duration_ms",
        "tunable_op_tuning_enable",
    ),
    "tensorrt": (
        "trt_auxiliary_streams",
        "trt_build_heuristics_enable",
        "trt_builder_optimization_level",
        "trt_context_memory_sharing_enable",
        "trt_detailed_build_log",
        "trt_engine_hw_compatible",
        "trt_force_sequential_engine_build",
        "trt_layer_norm_fp32_fallback",
        "trt_max_partition_iterations",
        "trt_max_workspace_size",
        "trt_min_subgraph_size",
        "trt_op_types_to_exclude",
        "trt_preview_features",
        "trt_sparsity_enable",
        "trt_tactic_sources",
    ),
}
# Names that exist and are refused, with the reason.
_REFUSED = {
    "tensorrt.trt_cuda_graph_enable": (
        "replays one batch's addresses, and here each batch has outputs of its own: the provider would return the first result "
        "for ever, without an error (onnxruntime issue 20050); leave it out"
    ),
    "memory.enable_memory_arena_shrinkage": (
        "is an option of a run and no entry of a session; it is set here by itself for the run after memory ran out"
    ),
}
_KNOWN = (
    *_CHOICES,
    *_SWITCHES,
    *_NUMBERS,
    *(f"{provider}.{name}" for provider, names in _PROVIDER_OPTIONS.items() for name in names),
    *sorted(ENTRIES),
)
# Longer than the gap between two operators and far shorter than the gap between two batches; see docs/reference/runtimes.md.
_SPIN_US = "50"
_KNOWS_SPIN_DURATION = (1, 31)


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How to open a session. `choices` are names of enumeration members; `entries` and `provider_options` have text values."""

    choices: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)
    provider_options: dict[str, dict[str, str]] = field(default_factory=dict)


def session_config(session: Mapping[str, Any], *, threads: int, spin: Mapping[str, str]) -> SessionConfig:
    """The user's table over our defaults. Raises `HandlerLoadError` with every wrong name and value."""
    config = SessionConfig(attributes={"intra_op_num_threads": threads, "inter_op_num_threads": 1})
    # `shapes` belong to an engine; a session has no such option.
    given = flattened({name: value for name, value in session.items() if name != "shapes"})
    faults = [fault for name, value in given.items() if (fault := _put(config, name, value))]
    if faults:
        raise HandlerLoadError(f"the table `session` cannot be used: {'; '.join(faults)}")
    if not any(name.startswith("session.intra_op.") and "spin" in name for name in given):
        config.entries.update(spin)
    return config


def spinning(*, threads: int, usable_cores: int, version: str) -> dict[str, str]:
    """How threads wait for the next operator: they spin for a short time if the cores belong to this slot alone. They do not
    spin if others need the cores, or if this version would spin for milliseconds after each batch."""
    known = tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= _KNOWS_SPIN_DURATION
    if threads > 1 and usable_cores <= threads and known:
        return {"session.intra_op.spin_duration_us": _SPIN_US}
    return {"session.intra_op.allow_spinning": "0"}


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted names, because TOML reads `cuda.gpu_mem_limit = 1` as a table inside a table."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        inner = flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
        flat.update(inner)
    return flat


def session_options(library: Any, config: SessionConfig, *, profile: str = "") -> Any:
    """`profile` is the beginning of the path of a file in which every call is recorded."""
    options = library.SessionOptions()
    for name, member in config.choices.items():
        setattr(options, name, getattr(getattr(library, _TYPES[name]), member))
    for name, value in config.attributes.items():
        setattr(options, name, value)
    for name, text in config.entries.items():
        options.add_session_config_entry(name, text)
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    return options


def fallen(assigned: Sequence[tuple[str, Sequence[str]]], wanted: Sequence[str]) -> dict[str, int]:
    """Count the operators that run on none of the wanted providers. Raises `HandlerLoadError` if that is all of them.

    `assigned` lists the parts of the graph, each with its provider and operators.
    """
    elsewhere: dict[str, int] = {}
    nodes = 0
    for provider, operators in assigned:
        nodes += len(operators)
        for operator in operators if provider not in wanted else ():
            elsewhere[operator] = elsewhere.get(operator, 0) + 1
    if nodes and sum(elsewhere.values()) == nodes:
        raise HandlerLoadError(
            f"{wanted[0]} is loaded, but runs none of the model's {nodes} nodes ({', '.join(sorted(elsewhere))}); "
            'use provider = "cpu", or export the model with operators that it knows'
        )
    return elsewhere


def _put(config: SessionConfig, name: str, value: Any) -> str:
    """Take one name of the table over into the config. Returns what is wrong with it; empty if nothing is."""
    if name in _CHOICES:
        config.choices[name] = _CHOICES[name].get(str(value), "")
        return "" if config.choices[name] else f"{name} must be one of {', '.join(_CHOICES[name])}, not {value!r}"
    if name in _SWITCHES:
        config.attributes[name] = value
        return "" if isinstance(value, bool) else f"{name} must be true or false, not {value!r}"
    if name in _NUMBERS:
        config.attributes[name] = value
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NUMBERS[name]
        return "" if fits else f"{name} must be a whole number from 0 to {_NUMBERS[name]}, not {value!r}"
    if name in _REFUSED:
        return f"{name} {_REFUSED[name]}"
    provider, _, option = name.partition(".")
    if not isinstance(value, str | int | float):
        return f"{name} must be text, a number, true or false, not {value!r}"
    if option in _PROVIDER_OPTIONS.get(provider, ()):
        config.provider_options.setdefault(provider, {})[option] = _text(value)
        return ""
    if name in ENTRIES:
        config.entries[name] = _text(value)
        return ""
    near = get_close_matches(name, _KNOWN, n=1, cutoff=0.6)
    return f"{name} is not known here; " + (
        f"did you mean {near[0]}?" if near else "docs/reference/runtimes.md lists the names"
    )


def _text(value: str | float) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
