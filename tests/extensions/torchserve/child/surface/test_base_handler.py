"""BaseHandler with real models, and handlers that subclass it as public ones do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.child.surface import timing
from penstock.extensions.torchserve.child.surface.base_handler import BaseHandler
from penstock.handlers.metrics.metrics import HandlerMetrics

torch = pytest.importorskip("torch", reason="BaseHandler runs torch models: pip install 'penstock-inference[torch]'")

# Handlers of archives save and load TorchScript, which torch would like to be rid of.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

Make = Callable[..., Any]
MODEL = """
    import torch
    class Doubled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.by = torch.nn.Parameter(torch.tensor([1.0]))
        def forward(self, x):
            return x * self.by
"""


class Doubling(torch.nn.Module):  # type: ignore[name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.9)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.dropout(x) * 2


@pytest.fixture
def script(folder: Path) -> str:
    """A TorchScript file that doubles, if it is in eval mode."""
    torch.jit.script(Doubling()).save(folder / "double.pt")
    return "double.pt"


def write(path: Path, code: str) -> None:
    path.write_text(dedent(code))


def test_a_torchscript_model_answers_a_batch(script: str, context: Make, counted: HandlerMetrics) -> None:
    handler = BaseHandler()
    handler.initialize(context(serializedFile=script))
    assert handler.initialized
    assert (str(handler.get_device()), handler.map_location, handler.mapping) == ("cpu", "cpu", None)
    assert handler.handle([[1.0, 2.0], [3.0, 4.0]], context(serializedFile=script)) == [[2.0, 4.0], [6.0, 8.0]]
    (sample,) = counted.drain()
    assert (sample.name, sample.labels, sample.label_values) == ("handler_time", ("model_name", "level"), ("digits", "Model"))


def test_weights_go_into_the_only_class_of_the_model_file(folder: Path, context: Make) -> None:
    write(folder / "model.py", MODEL)
    torch.save({"by": torch.tensor([3.0])}, folder / "weights.pth")
    handler = BaseHandler()
    handler.initialize(context(serializedFile="weights.pth", modelFile="model.py"))
    assert type(handler.model).__name__ == "Doubled"
    assert not handler.model.training
    assert handler.handle([[2.0]], context()) == [[6.0]]
    assert handler.model_pt_path == str(folder / "weights.pth")


def test_a_model_file_alone_keeps_its_own_weights(folder: Path, context: Make) -> None:
    write(folder / "model.py", MODEL)
    handler = BaseHandler()
    handler.initialize(context(modelFile="model.py"))
    assert handler.handle([[2.0]], context()) == [[2.0]]


def test_a_pickled_model_is_refused_before_its_code_runs(folder: Path, context: Make) -> None:
    write(folder / "model.py", MODEL)
    torch.save(Doubling(), folder / "whole.pth")
    with pytest.raises(HandlerLoadError, match=r"whole\.pth holds more than plain values.*model\.state_dict\(\)"):
        BaseHandler().initialize(context(serializedFile="whole.pth", modelFile="model.py"))


@pytest.mark.parametrize(
    ("files", "error", "said"),
    [
        ({}, RuntimeError, "No model weights could be loaded.*not named"),
        ({"serializedFile": "model.bin"}, RuntimeError, r"No model weights could be loaded.*model\.bin"),
        ({"modelFile": "none.py"}, RuntimeError, r"Missing the none\.py file"),
        ({"modelFile": "two.py"}, ValueError, "Expected only one class as model definition"),
        ({"modelFile": "zero.py"}, ValueError, "Expected only one class as model definition"),
        ({"serializedFile": "none.pt"}, ValueError, "does not exist"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    files: dict[str, str], error: type[Exception], said: str, folder: Path, context: Make
) -> None:
    write(folder / "two.py", "class A: ...\nclass B: ...\n")
    write(folder / "zero.py", "from json import JSONDecoder\n")
    with pytest.raises(error, match=said):
        BaseHandler().initialize(context(**files))


def test_an_onnx_model_is_run_by_its_session(folder: Path, context: Make) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    shape = onnx.TensorProto.FLOAT, ["n", 2]
    ports = [onnx.helper.make_tensor_value_info(name, *shape) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "double", ports[:1], ports[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), folder / "m.onnx")
    handler = BaseHandler()
    handler.initialize(context(serializedFile="m.onnx"))
    assert handler.model.get_inputs()[0].name == "x"
    # TorchServe's own BaseHandler loads such a session and cannot run it.
    assert handler.handle([[1.0, 2.0]], context()) == [[2.0, 4.0]]
    with pytest.raises(ValueError, match="takes x, and preprocess gave z"):
        handler.inference({"z": torch.ones(1, 2)})


def test_the_names_of_classes_are_read(folder: Path, script: str, context: Make) -> None:
    (folder / "index_to_name.json").write_text('{"0": ["n01", "cat"]}')
    handler = BaseHandler()
    handler.initialize(context(serializedFile=script))
    assert handler.mapping == {"0": "cat"}


def test_a_gpu_that_is_not_there_is_refused(script: str, context: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    asked = context(serializedFile=script)
    asked.system_properties["gpu_id"] = 0
    with pytest.raises(HandlerLoadError, match=r"GPU 0, and torch .* sees none"):
        BaseHandler().initialize(asked)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_a_model_runs_on_the_gpu_that_the_context_names(script: str, context: Make) -> None:
    asked = context(serializedFile=script)
    asked.system_properties["gpu_id"] = 0
    handler = BaseHandler()
    handler.initialize(asked)
    assert (str(handler.device), handler.map_location) == ("cuda:0", "cuda")
    assert handler.preprocess([[1.0]]).is_cuda
    assert handler.handle([[1.0, 2.0]], asked) == [[2.0, 4.0]]


def test_the_model_is_compiled_as_the_settings_ask(script: str, folder: Path, context: Make) -> None:
    write(folder / "model.py", MODEL)
    handler = BaseHandler()
    handler.initialize(context(modelFile="model.py", settings={"pt2": {"compile": {"enable": True, "backend": "eager"}}}))
    assert type(handler.model).__name__ == "OptimizedModule"
    assert handler.handle([[2.0]], context()) == [[2.0]]


def test_stages_are_timed_if_the_settings_ask(script: str, context: Make, counted: HandlerMetrics) -> None:
    asked = context(serializedFile=script, settings={"handler": {"profile": True}})
    handler = BaseHandler()
    handler.initialize(asked)
    handler.handle([[1.0]], asked)
    stages = [f"ts_handler_{stage}" for stage in ("preprocess", "inference", "postprocess")]
    assert [sample.name for sample in counted.drain()] == [*stages, "handler_time"]


def test_a_description_is_what_the_handler_says(script: str, context: Make) -> None:
    class Described(BaseHandler):
        def describe_handle(self) -> Any:
            return {"classes": 10}

    handler = Described()
    handler.initialize(context(serializedFile=script))
    assert handler.handle([[1.0]], context(headers={"describe": "True"})) == [{"classes": 10}]
    assert BaseHandler().handle([], context(headers={"describe": "True"})) == [None]


@pytest.mark.parametrize(
    ("row", "inputs", "target"),
    [
        ({"body": {"x": 1}}, {"x": 1}, 0),
        ({"data": b"1", "target": 3}, b"1", 3),
        ({"data": b"1", "target": bytearray(b"2")}, b"1", 2),
        ([1.0, 2.0], None, 0),
    ],
)
def test_an_explanation_gets_the_inputs_and_the_target(row: Any, inputs: Any, target: int, script: str, context: Make) -> None:
    class Explaining(BaseHandler):
        def preprocess(self, data: Any) -> Any:
            return torch.ones(1, 2)

        def get_insights(self, tensor_data: Any, raw_data: Any, target: Any = 0) -> Any:
            return [(tensor_data.tolist(), raw_data, target)]

    handler = Explaining()
    handler.initialize(context(serializedFile=script))
    assert handler.handle([row], context(headers={"explain": "True"})) == [([[1.0, 1.0]], inputs, target)]
    assert handler.explain


def test_a_handler_that_explains_nothing_says_so(script: str, context: Make) -> None:
    handler = BaseHandler()
    handler.initialize(context(serializedFile=script))
    with pytest.raises(NotImplementedError, match="no method get_insights"):
        handler.handle([[1.0]], context(headers={"explain": "True"}))


def test_torchs_profiler_writes_a_bounded_number_of_traces(
    script: str, tmp_path: Path, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLE_TORCH_PROFILER", "true")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(timing, "MOST_TRACES", 1)
    handler = BaseHandler()
    handler.initialize(context(serializedFile=script))
    for _ in range(2):
        assert handler.handle([[1.0]], context()) == [[2.0]]
    assert len(list((tmp_path / "pytorch_profiler").iterdir())) == 1


def test_handlers_written_for_torchserve_run(ts: None, folder: Path, script: str, context: Make) -> None:
    """The calls that most public handlers make, in one."""
    write(
        folder / "own_handler.py",
        """
        import json
        import os
        import torch
        from ts.torch_handler.base_handler import BaseHandler

        class OwnHandler(BaseHandler):
            def __init__(self):
                super(OwnHandler, self).__init__()
                self.initialized = False

            def initialize(self, ctx):
                self.manifest = ctx.manifest
                properties = ctx.system_properties
                model_dir = properties.get("model_dir")
                gpu = properties.get("gpu_id")
                self.device = torch.device(f"cuda:{gpu}" if torch.cuda.is_available() and gpu is not None else "cpu")
                self.model = torch.jit.load(os.path.join(model_dir, self.manifest["model"]["serializedFile"]))
                self.model.eval()
                self.initialized = True

            def preprocess(self, data):
                return torch.tensor([row.get("data") or row.get("body") for row in data])

            def postprocess(self, data):
                return [{"sum": float(row.sum())} for row in data]
        """,
    )
    import own_handler  # type: ignore[import-not-found]

    handler = own_handler.OwnHandler()
    handler.initialize(context(serializedFile=script))
    assert handler.handle([{"body": [1.0, 2.0]}, {"data": [3.0, 4.0]}], context()) == [{"sum": 6.0}, {"sum": 14.0}]


def test_a_handler_may_call_the_base_class_to_initialize(ts: None, folder: Path, script: str, context: Make) -> None:
    write(
        folder / "small_handler.py",
        """
        from ts.torch_handler.base_handler import BaseHandler

        class SmallHandler(BaseHandler):
            def initialize(self, context):
                super().initialize(context)
                self.name = self.manifest["model"]["modelName"]

            def preprocess(self, data):
                return super().preprocess([row["body"] for row in data])
        """,
    )
    import small_handler  # type: ignore[import-not-found]

    handler = small_handler.SmallHandler()
    handler.initialize(context(serializedFile=script))
    assert handler.handle([{"body": [1.0]}], context()) == [[2.0]]
    assert handler.name == "digits"
    assert "small_handler" in sys.modules
