"""Converts a module to another precision, memory format or int8. Each raises `HandlerLoadError` if torch cannot."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from penstock.errors import HandlerLoadError

HALVES = {"bf16": "bfloat16", "fp16": "float16"}


def cast(torch: Any, module: Any, dtype: Any) -> Any:
    """The module with floating weights and constants in `dtype`; in an exported program the dtypes in its graph change too."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _retype(torch, part, dtype)
        # The constants of an exported program are plain attributes, which `to` does not convert.
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(part, name, value.to(dtype))
    return module.to(dtype)


def _retype(torch: Any, graph_module: Any, dtype: Any) -> None:
    """Replace float32 by `dtype` where the graph names it, or relies on torch's default."""

    def swapped(argument: Any) -> Any:
        return dtype if argument is torch.float32 else argument

    for node in list(graph_module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph_module.graph.erase_node(node)
            continue
        node.args = torch.fx.node.map_aggregate(node.args, swapped)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, swapped)
        if _makes_float32(torch, node):
            node.kwargs = {**node.kwargs, "dtype": dtype}
    graph_module.recompile()


def _makes_float32(torch: Any, node: Any) -> bool:
    """Whether the node creates a tensor without an input (zeros, arange) in torch's default dtype."""
    value, schema = node.meta.get("val"), getattr(node.target, "_schema", None)
    if schema is None or getattr(value, "dtype", None) is not torch.float32 or node.kwargs.get("dtype") is not None:
        return False
    takes_dtype = any(argument.name == "dtype" and argument.kwarg_only for argument in schema.arguments)
    return takes_dtype and not any(isinstance(given.meta.get("val"), torch.Tensor) for given in node.all_input_nodes)


def quantized(torch: Any, module: Any) -> Any:
    """A copy whose Linear and LSTM layers have int8 weights and quantize their inputs at run time."""
    try:
        with warnings.catch_warnings():
            # torch announced its removal for 2.10, and 2.13 still has it; docs/reference/runtimes.md names its successor.
            warnings.filterwarnings("ignore", r"torch\.ao\.quantization is deprecated", DeprecationWarning)
            warnings.filterwarnings("ignore", r"torch\.quantize_per_tensor", UserWarning)
            result = import_module("torch.ao.quantization").quantize_dynamic(
                module, {torch.nn.Linear, torch.nn.LSTM}, dtype=torch.qint8
            )
    except Exception as error:
        # Layers that read their neighbours' weights raise errors of any class, and newer versions of torch may lack this.
        raise HandlerLoadError(
            f"torch cannot quantize {type(module).__name__}: {type(error).__name__}: {error}; "
            'set quantize = "off", or export the model to ONNX and quantize it there'
        ) from error
    changed = [part for part in result.modules() if ".quantized.dynamic." in type(part).__module__]
    if not changed:
        raise HandlerLoadError(
            f'quantize = "int8" would change nothing: {type(module).__name__} has no Linear or LSTM layer; leave it out'
        )
    return result
