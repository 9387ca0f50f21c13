from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from penstock.errors import HandlerContractError, HandlerLoadError
from penstock.handlers.array_handler import ArrayHandler
from penstock.handlers.contract import Context, Failure
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.handlers.media import encode, plain_all

Make = Callable[..., Path]


@pytest.fixture
def saved(tmp_path: Path) -> Make:
    """Save a model `total = a + b` (or `total = a + a`) with inputs of the given shape."""

    def save(
        shape: Sequence[int | str | None],
        *,
        inputs: Sequence[str] = ("a", "b"),
        reduce: bool = False,
        element: int = TensorProto.FLOAT,
    ) -> Path:
        ports = [helper.make_tensor_value_info(name, element, shape) for name in inputs]
        total = helper.make_tensor_value_info("total", element, None)
        nodes = [helper.make_node("Add", [inputs[0], inputs[-1]], ["sum" if reduce else "total"])]
        nodes += [helper.make_node("ReduceSum", ["sum"], ["total"], keepdims=0)] if reduce else []
        graph = helper.make_graph(nodes, "add", ports, [total])
        path = tmp_path / "add.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path

    return save


def run(loaded: Loaded, items: list[Any]) -> Any:
    assert loaded.preprocess is not None
    assert loaded.postprocess is not None
    return plain_all(loaded.postprocess(loaded.inference(loaded.preprocess(items))))


def test_an_ending_in_capitals_is_the_same_kind_of_file(saved: Make) -> None:
    """Regression: `penstock config --check` accepted such a file, and loading refused it."""
    path = saved(["n", 2])
    loaded = load(str(path.rename(path.with_name("ADD.ONNX"))), "add")
    assert run(loaded, [{"a": [1, 2], "b": [3, 4]}]) == [{"total": [4.0, 6.0]}]


def test_items_are_stacked_and_each_gets_its_own_outputs(saved: Make) -> None:
    loaded = load(str(saved(["n", 2])), "add")
    items = [{"a": [1, 2], "b": [3, 4]}, {"a": [0, 0], "b": [5, 6]}]
    assert run(loaded, items) == [{"total": [4, 6]}, {"total": [5, 6]}]
    assert loaded.provider == "CPUExecutionProvider"


def test_a_model_with_one_input_takes_the_bare_list(saved: Make) -> None:
    loaded = load(str(saved(["n", 2], inputs=("a",))), "add")
    assert run(loaded, [[1, 2], {"a": [3, 4]}]) == [{"total": [2, 4]}, {"total": [6, 8]}]


def test_items_of_different_shapes_run_in_groups_and_keep_their_places(saved: Make) -> None:
    loaded = load(str(saved(["n", "length"], inputs=("a",))), "add")
    assert run(loaded, [[1], [1, 2], [3]]) == [{"total": [2]}, {"total": [2, 4]}, {"total": [6]}]


def test_a_model_fixed_at_one_runs_item_by_item(saved: Make) -> None:
    loaded = load(str(saved([1, 2], inputs=("a",))), "add")
    assert run(loaded, [[1, 2], [3, 4]]) == [{"total": [2, 4]}, {"total": [6, 8]}]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ([1, 2, 3], "a has shape [3], the model takes [2]"),
        (["x", "y"], "a cannot be read as float32"),
        ([[1], [2, 3]], "rows differ in length"),
        (["1", "2"], "a cannot be read as float32"),
        ([1, None], "a cannot be read as float32"),
        ({"b": [1, 2]}, "the fields a"),
        (None, "a cannot be read as float32"),
    ],
)
def test_an_input_of_the_wrong_shape_or_kind_fails_alone(saved: Make, item: Any, words: str) -> None:
    loaded = load(str(saved(["n", 2], inputs=("a",))), "add")
    assert loaded.preprocess is not None
    bad, good = loaded.preprocess([item, [1, 2]])
    assert isinstance(bad, Failure)
    assert bad.code == "invalid_input"
    assert words in bad.message
    assert isinstance(good, dict)


@pytest.mark.parametrize(("item", "taken"), [([1, -2], True), ([1.5, 2], False), ([1, 2**40], False), ([1, 2**70], False)])
def test_whole_numbers_are_neither_rounded_nor_wrapped(saved: Make, item: Any, taken: bool) -> None:
    loaded = load(str(saved(["n", 2], inputs=("a",), element=TensorProto.INT32)), "add")
    assert loaded.preprocess is not None
    assert isinstance(loaded.preprocess([item])[0], dict) is taken


def refusals(loaded: Loaded, *items: Any) -> list[str]:
    assert loaded.preprocess is not None
    failures = loaded.preprocess(list(items))
    assert [failure.code for failure in failures] == ["invalid_input"] * len(items)
    return [failure.message for failure in failures]


def test_inputs_that_share_a_free_dimension_must_have_one_length(saved: Make) -> None:
    """Regression: lengths 3 and 2 were an error of the model (500); for 3 and 1 ONNX Runtime repeated the one value."""
    loaded = load(str(saved(["n", "length"])), "add")
    words = [f"axis 0 of b is {length}, and must be 3 where axis 0 of a is 3" for length in (2, 1)]
    assert refusals(loaded, {"a": [1, 2, 3], "b": [1, 2]}, {"a": [1, 2, 3], "b": [1]}) == words
    assert run(loaded, [{"a": [1, 2, 3], "b": [1, 1, 1]}]) == [{"total": [2, 3, 4]}]


def test_free_dimensions_without_a_name_are_left_to_the_model(saved: Make) -> None:
    loaded = load(str(saved(["n", None])), "add")
    assert run(loaded, [{"a": [1, 2, 3], "b": [1]}]) == [{"total": [2, 3, 4]}]


def test_an_empty_list_is_the_callers_error(saved: Make) -> None:
    """Regression: the empty list was passed to the model, which failed with 500."""
    loaded = load(str(saved(["n", "length"], inputs=("a",))), "add")
    assert refusals(loaded, []) == ["a has shape [0], the model takes [1 or more]"]
    assert loaded.input_schema is not None
    assert loaded.input_schema["anyOf"][1]["minItems"] == 1


def test_a_model_file_takes_json_and_arrays_alone(saved: Make) -> None:
    """Regression: a model file announced every media type, so `curl -d` without a header was a bad number (422)."""
    assert load(str(saved(["n", 2])), "add").info().accepts == ("application/json", "application/x-npy")


def test_the_inputs_of_the_model_become_its_schema(saved: Make) -> None:
    array = {"type": "array", "items": {"type": "number", "x-datatype": "FP32"}, "minItems": 2, "maxItems": 2}
    schema = load(str(saved(["n", 2])), "add").input_schema
    assert schema is not None
    assert schema["properties"] == {"a": array, "b": array}
    single = load(str(saved(["n", 2], inputs=("a",))), "add").input_schema
    assert single is not None
    assert single["anyOf"][1] == array


def test_a_fixed_batch_other_than_one_is_filled_up(saved: Make) -> None:
    loaded = load(str(saved([4, 2])), "add")
    assert run(loaded, [{"a": [1, 2], "b": [3, 4]}] * 3) == [{"total": [4.0, 6.0]}] * 3


def test_an_output_without_a_batch_axis_breaks_the_contract(saved: Make) -> None:
    loaded = load(str(saved(["n", 2], reduce=True)), "add")
    with pytest.raises(HandlerContractError, match=r"output total has shape \(\) for 2 items"):
        run(loaded, [{"a": [1, 2], "b": [3, 4]}] * 2)


def test_an_output_that_is_no_tensor_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Regression: with ZipMap, which scikit-learn's converter adds, a model was ready but every job failed."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    table = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    chances = helper.make_value_info("chances", helper.make_sequence_type_proto(table))
    node = helper.make_node("ZipMap", ["x"], ["chances"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "classifier", [x], [chances])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "zipmap.onnx")
    with pytest.raises(HandlerLoadError, match=r"output chances .* is a seq\(map\(.*options=\{'zipmap': False\}"):
        load(str(tmp_path / "zipmap.onnx"), "zipmap")


def test_a_device_that_would_not_be_used_is_refused(saved: Make) -> None:
    with pytest.raises(HandlerLoadError, match="no provider for the device 'tpu'"):
        load(str(saved(["n", 2])), "add", device="tpu")


def test_a_silent_fall_back_to_the_cpu_is_refused(saved: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU build without its libraries runs on the CPU and prints one line on stderr, so callers would only see it is slow."""
    import onnxruntime

    genuine = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda model, options, **_: genuine(model, options))
    with pytest.raises(HandlerLoadError, match="'cuda:0' was asked for, but ONNX Runtime would use CPU"):
        load(str(saved(["n", 2])), "add", device="cuda:0")


def test_a_broken_file_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(HandlerLoadError, match=r"cannot load broken\.onnx"):
        load(str(tmp_path / "broken.onnx"), "broken")


def test_without_onnxruntime_the_extra_to_install_is_named(saved: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "onnxruntime":
            raise ImportError(name)
        return genuine(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(HandlerLoadError, match=r"pip install 'penstock-inference\[onnx\]'"):
        load(str(saved(["n", 2])), "add")


def test_a_subclass_may_replace_the_outer_stages(saved: Make) -> None:
    class Summed(ArrayHandler):
        def preprocess(self, inputs: list[int], /) -> list[Any]:
            return [{"a": np.full(2, value, np.float32), "b": np.ones(2, np.float32)} for value in inputs]

        def postprocess(self, outputs: list[Any], /) -> list[float]:
            return [float(output["total"].sum()) for output in outputs]

    path = saved(["n", 2])
    Summed.model_file = path.name
    handler = Summed()
    handler.initialize(Context("add", folder=path.parent))
    assert handler.postprocess(handler.inference(handler.preprocess([1, 2]))) == [4.0, 6.0]
    assert handler.input_schema is None


def test_a_subclass_gets_arrays_from_postprocess_and_may_return_them_anywhere_in_an_output(saved: Make) -> None:
    class Named(ArrayHandler):
        def postprocess(self, outputs: list[Any], /) -> list[Any]:
            found = [output["total"] for output in super().postprocess(outputs)]
            return [{"best": value.argmax(), "scores": [value, value.max()]} for value in found]

    path = saved(["n", 2])
    Named.model_file = path.name
    handler = Named()
    handler.initialize(Context("add", folder=path.parent))
    [output] = handler.postprocess(handler.inference(handler.preprocess([{"a": [0.1, 2.0], "b": [0.0, 1.0]}])))
    assert encode(output) == ("application/json", b'{"best":1,"scores":[[0.1,3.0],3.0]}')
