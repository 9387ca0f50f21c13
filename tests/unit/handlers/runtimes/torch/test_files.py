"""TorchScript and weights with a model class on the CPU; a file that would run code when it is opened is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.load import load
from penstock.handlers.runtimes.contract import open_runtime
from penstock.job import Call
from penstock.model_spec import RuntimeOptions
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import Failed, Item, Output

torch = pytest.importorskip("torch")
from tests.unit.handlers.runtimes.torch import nets  # noqa: E402

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
ROWS = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
INPUTS = {"x": {"dtype": "float32", "shape": [4]}}
CLASS = "tests.unit.handlers.runtimes.torch.nets:Perceptron"
SOURCE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.layers(x)

def make():
    return Net()
"""


@pytest.fixture
def net() -> Any:
    return nets.seeded(nets.Perceptron)


def opened(path: Path, options: dict[str, Any] | None = None, **runtime: Any) -> Any:
    options = {"inputs": INPUTS} if options is None else options
    return open_runtime(path, Context("net", folder=path.parent, options=options, runtime=RuntimeOptions(**runtime)))


def wanted(net: Any) -> Any:
    with torch.inference_mode():
        return net(torch.from_numpy(ROWS)).numpy()


def saved_weights(net: Any, path: Path) -> Path:
    if path.suffix == ".safetensors":
        pytest.importorskip("safetensors.torch").save_file(net.state_dict(), path)
    else:
        torch.save(net.state_dict(), path)
    return path


@pytest.mark.parametrize("ending", [".pt", ".pth", ".ts"])
def test_torchscript_runs_without_its_class(tmp_path: Path, net: Any, ending: str) -> None:
    runtime = opened(nets.save_script(net, tmp_path / f"net{ending}"))
    assert runtime.outputs == ["output"]
    np.testing.assert_allclose(runtime.run({"x": ROWS})["output"], wanted(net), **CLOSE)


def test_torchscript_with_two_inputs_takes_them_by_name(tmp_path: Path) -> None:
    net = nets.seeded(nets.Embedder)
    path = nets.save_script(net, tmp_path / "text.pt")
    shape = {"dtype": "int64", "shape": ["length"]}
    # The order differs from that of the model, because names decide.
    runtime = opened(path, {"inputs": {"mask": shape, "ids": shape}})
    assert runtime.outputs == []
    ids, mask = np.full((2, 5), 7), np.array([[1, 1, 1, 0, 0]] * 2)
    with torch.inference_mode():
        want = net(torch.from_numpy(ids), torch.from_numpy(mask))
    found = runtime.run({"ids": ids, "mask": mask})
    np.testing.assert_allclose(found["output_0"], want[0].numpy(), **CLOSE)
    assert found["output_1"].tolist() == [3, 3]
    assert runtime.outputs == ["output_0", "output_1"]


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (1, r"ValueError: the first number is 1"),
        (2, r"RuntimeError: mat1 and mat2 shapes cannot be multiplied \(1x2 and 99x99\)"),
        (3, r"RuntimeError: .*DefaultCPUAllocator: .* 400000000000000000 bytes.*"),
    ],
)
def test_callers_see_what_torchscript_raised_and_no_traceback(tmp_path: Path, first: int, message: str) -> None:
    """torch writes the traceback into the message, with paths and source lines of the machine that saved the model."""
    nets.save_script(nets.Picky(), tmp_path / "picky.ts")
    loaded = load(str(tmp_path / "picky.ts"), "picky", options={"inputs": {"x": {"shape": [2]}}})
    items = [Item("application/json", f"[{number}, 0]".encode()) for number in (first, 5)]
    failed, good = run_batch(loaded, items).outcomes
    assert isinstance(failed, Failed)
    assert re.fullmatch(message, failed.message)
    assert isinstance(good, Output)


def test_an_error_of_torchscript_without_a_traceback_is_told_as_it_is(tmp_path: Path, net: Any) -> None:
    path = nets.save_script(net, tmp_path / "net.ts")
    with pytest.raises(HandlerLoadError, match=r"first call failed: RuntimeError: forward\(\) expected at most 2 argument"):
        opened(path, {"inputs": {"x": {"shape": [4]}, "y": {"shape": [4]}}})


def test_torchscript_in_bf16_and_with_buckets(tmp_path: Path, net: Any) -> None:
    path = nets.save_script(net, tmp_path / "net.pt")
    runtime = opened(path, precision="bf16", batch_buckets=(4,))
    np.testing.assert_allclose(runtime.run({"x": ROWS})["output"], wanted(net), rtol=2e-2, atol=2e-2)
    assert runtime.padding_ratio == pytest.approx(3 / 8)


@pytest.mark.parametrize("ending", [".pt", ".pth", ".safetensors"])
def test_weights_fill_the_model_class(tmp_path: Path, net: Any, ending: str) -> None:
    path = saved_weights(net, tmp_path / f"net{ending}")
    runtime = opened(path, {"inputs": INPUTS, "model_class": CLASS})
    np.testing.assert_allclose(runtime.run({"x": ROWS})["output"], wanted(net), **CLOSE)


@pytest.mark.parametrize("ending", [".PT", ".Safetensors"])
def test_an_ending_in_capitals_is_the_same_kind_of_file(tmp_path: Path, net: Any, ending: str) -> None:
    """Regression: `penstock config --check` accepted such a file, and loading refused it."""
    source = saved_weights(net, tmp_path / f"NET{ending.lower()}").rename(tmp_path / f"NET{ending}")
    loaded = load(str(source), "net", options={"inputs": INPUTS, "model_class": CLASS})
    np.testing.assert_allclose(loaded.handler.runtime.run({"x": ROWS})["output"], wanted(net), **CLOSE)  # type: ignore[attr-defined]


@pytest.mark.parametrize("args", [{"width": 16}, [16]])
def test_the_class_may_lie_beside_the_weights_and_take_arguments(tmp_path: Path, args: Any) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    wide = nets.seeded(nets.Perceptron, 16)
    path = saved_weights(wide, tmp_path / "net.safetensors")
    runtime = opened(path, {"inputs": INPUTS, "model_class": "net.py:Net", "model_args": args})
    np.testing.assert_allclose(runtime.run({"x": ROWS})["output"], wanted(wide), **CLOSE)


@pytest.mark.parametrize("kind", [nets.Tied, nets.Reshaped])
def test_weights_that_layers_share_lie_in_the_file_once(tmp_path: Path, kind: Any) -> None:
    """`save_model` writes shared weights once. Regression: such a file was refused because of a missing key."""
    library = pytest.importorskip("safetensors.torch")
    net, path = nets.seeded(kind), tmp_path / "tied.safetensors"
    library.save_model(net, str(path))
    assert len(library.load_file(path)) < len(net.state_dict())
    class_name = f"{nets.__name__}:{kind.__name__}"
    runtime = opened(path, {"inputs": INPUTS, "model_class": class_name})
    np.testing.assert_allclose(runtime.run({"x": ROWS})["output"], wanted(net), **CLOSE)


def test_weights_that_are_not_shared_or_only_in_part_are_still_missing(tmp_path: Path) -> None:
    net, path = nets.seeded(nets.Tied), tmp_path / "part.safetensors"
    pytest.importorskip("safetensors.torch").save_file({"head.bias": net.state_dict()["head.bias"]}, path)
    with pytest.raises(HandlerLoadError, match=r"Missing key.*weight"):
        opened(path, {"inputs": INPUTS, "model_class": f"{nets.__name__}:Tied"})
    whole = nets.seeded(nets.Halved)
    pytest.importorskip("safetensors.torch").save_file({"part": whole.state_dict()["part"].clone()}, path)
    with pytest.raises(HandlerLoadError, match=r"Missing key.*whole"):
        opened(path, {"inputs": INPUTS, "model_class": f"{nets.__name__}:Halved"})


def test_several_calls_run_one_after_another_where_they_cannot_run_at_once(tmp_path: Path, net: Any) -> None:
    """docs/reference/runtimes.md promises this for every runtime. Regression: on torch the calls ended in an AttributeError."""
    runtime = opened(nets.save_script(net, tmp_path / "net.pt"))
    assert runtime.open_parallel() == 1
    found = [answer["output"] for answer in runtime.run_parallel([{"x": ROWS[:2]}, {"x": ROWS[2:]}])]
    assert [len(rows) for rows in found] == [2, 3]
    np.testing.assert_allclose(np.concatenate(found), wanted(net), **CLOSE)


def test_a_quantized_model_is_not_explained_and_that_is_no_error_of_the_model(tmp_path: Path) -> None:
    """Regression: quantized layers have no gradients, and the answer was torch's RuntimeError with 500, not 501."""
    path = saved_weights(nets.seeded(nets.Colour), tmp_path / "colour.pt")
    shape = {"inputs": {"pixels": {"shape": [3, 4, 4]}}, "model_class": CLASS.replace("Perceptron", "Colour")}
    loaded = load(str(path), "colour", task="image-classification", options=shape, runtime=RuntimeOptions(quantize="int8"))
    (outcome,) = run_batch(loaded, [Item("image/png", loaded.handler.sample, call=Call.EXPLAIN)]).outcomes
    assert isinstance(outcome, Failed)
    assert outcome.code == "not_explainable"
    assert "int8" in outcome.message


def test_weights_inside_a_checkpoint_are_named_by_a_key(tmp_path: Path, net: Any) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"epoch": 3, "model": net.state_dict()}, path)
    options = {"inputs": INPUTS, "model_class": CLASS}
    with pytest.raises(HandlerLoadError, match=r"the entries epoch, model; .*weights_key"):
        opened(path, options)
    found = opened(path, {**options, "weights_key": "model"}).run({"x": ROWS})["output"]
    np.testing.assert_allclose(found, wanted(net), **CLOSE)


def test_int8_is_close_and_only_for_layers_that_have_it(tmp_path: Path, net: Any) -> None:
    path = saved_weights(net, tmp_path / "net.safetensors")
    runtime = opened(path, {"inputs": INPUTS, "model_class": CLASS}, quantize="int8")
    found = runtime.run({"x": ROWS})["output"]
    # Weights and activations up to about 3 are stored in 8 bits.
    np.testing.assert_allclose(found, wanted(net), atol=5e-2)
    assert not np.array_equal(found, wanted(net))
    assert runtime.provider.endswith("cpu int8")
    bare = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    path = saved_weights(bare, tmp_path / "bare.pt")
    (tmp_path / "bare.py").write_text(
        "from torch import nn\nclass Bare(nn.Sequential):\n"
        "    def __init__(self):\n        super().__init__(nn.BatchNorm1d(4))\n"
    )
    with pytest.raises(HandlerLoadError, match="would change nothing: Bare has no Linear or LSTM"):
        opened(path, {"inputs": INPUTS, "model_class": "bare.py:Bare"}, quantize="int8")


@pytest.mark.parametrize("ending", [".pt", ".pth"])
def test_a_pickled_module_is_refused_with_its_alternatives(tmp_path: Path, net: Any, ending: str) -> None:
    path = tmp_path / f"net{ending}"
    torch.save(net, path)
    with pytest.raises(HandlerLoadError, match=r"pickled module would run code .*torch\.export\.save .*safetensors") as caught:
        opened(path, {"inputs": INPUTS, "model_class": CLASS})
    assert "never loaded" in caught.value.message


class Touch:
    """What a hostile file holds in place of weights: unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("content", [lambda touch: touch, lambda touch: {"layers.0.weight": touch}])
def test_pickled_code_in_a_file_of_weights_is_never_run(tmp_path: Path, content: Any) -> None:
    path, marker = tmp_path / "hostile.pt", tmp_path / "ran"
    torch.save(content(Touch(marker)), path)
    with pytest.raises(HandlerLoadError, match=r"holds more than weights.*\(Unsupported global: .*\)") as caught:
        opened(path, {"inputs": INPUTS, "model_class": CLASS})
    assert caught.value.message.isprintable()
    assert "weights_only" not in caught.value.message
    assert not marker.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"weights alone; name the class .*model_class = \"net\.py:Net\""),
        ({"model_class": "Net"}, "weights alone"),
        ({"model_class": "net.py:Nett"}, r"no torch\.nn\.Module class called 'Nett'"),
        ({"model_class": "net.py:make"}, r"no torch\.nn\.Module class called 'make'"),
        ({"model_class": "gone.py:Net"}, r"there is no file .*gone\.py"),
        ({"model_class": "no_such_package.nets:Net"}, "needs the module 'no_such_package'"),
        ({"model_class": "net.py:Net", "model_args": {"depth": 3}}, "do not fit net.py:Net"),
        ({"model_class": "net.py:Net", "model_args": [16], "inputs": INPUTS}, r"do not fit Net: .*size mismatch"),
        ({"model_class": "net.py:Net"}, r"net\.pt is weights with a model class, which does not say what its inputs are"),
    ],
)
def test_what_is_missing_beside_the_weights_is_told(tmp_path: Path, net: Any, options: dict[str, Any], words: str) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    with pytest.raises(HandlerLoadError, match=f"(?s){words}"):
        opened(saved_weights(net, tmp_path / "net.pt"), options)


@pytest.mark.parametrize("ending", [".pt", ".safetensors", ".ts"])
def test_a_broken_file_is_told_by_name(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"broken{ending}"
    path.write_bytes(b"garbage")
    with pytest.raises(HandlerLoadError, match=rf"broken{ending} .*cannot be read|torch cannot load broken{ending}"):
        opened(path, {"inputs": INPUTS, "model_class": CLASS})


def test_what_the_model_returns_must_be_tensors(tmp_path: Path, net: Any) -> None:
    (tmp_path / "odd.py").write_text(
        "from tests.unit.handlers.runtimes.torch.nets import Perceptron\n"
        "class Odd(Perceptron):\n    def forward(self, x):\n        return [super().forward(x), 'words']\n"
    )
    path = saved_weights(net, tmp_path / "net.pt")
    with pytest.raises(HandlerLoadError, match=r"net\.pt was loaded, but the model must return tensors.*output_1 is a str"):
        opened(path, {"inputs": INPUTS, "model_class": "odd.py:Odd"})


def test_weights_are_served_with_no_code_but_the_class(tmp_path: Path, net: Any) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    path = saved_weights(net, tmp_path / "net.safetensors")
    loaded = load(str(path), "net", options={"inputs": INPUTS, "model_class": "net.py:Net"})
    assert loaded.preprocess is not None
    assert loaded.postprocess is not None
    answers: Any = loaded.postprocess(loaded.inference(loaded.preprocess(ROWS.tolist())))
    np.testing.assert_allclose([answer["output"] for answer in answers], wanted(net), **CLOSE)


@pytest.mark.parametrize(("module", "ending"), [("torch", ".pt2"), ("torch", ".safetensors"), ("safetensors", ".safetensors")])
def test_without_the_library_the_extra_to_install_is_named(tmp_path: Path, net: Any, module: str, ending: str) -> None:
    path = tmp_path / f"net{ending}"
    if ending == ".pt2":
        nets.save_perceptron(path)
    else:
        saved_weights(net, path)
    options = {"model_class": CLASS} if ending != ".pt2" else {}
    program = f"""
import sys
sys.modules[{module!r}] = None
from penstock.errors import HandlerLoadError
from penstock.handlers.load import load
try:
    load({str(path)!r}, "net", options={options!r})
except HandlerLoadError as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'penstock-inference[torch]'" in done.stdout
