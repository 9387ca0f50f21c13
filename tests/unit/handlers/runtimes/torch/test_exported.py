"""Exported programs on the CPU: the program defines inputs and batch sizes, and results equal those of the eager model."""

from __future__ import annotations

import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context, Failure
from penstock.handlers.load import load
from penstock.handlers.media import plain_all
from penstock.handlers.runtimes.contract import Port, open_runtime
from penstock.job import Call
from penstock.model_spec import RuntimeOptions
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import Failed, Item

torch = pytest.importorskip("torch")
from tests.unit.handlers.runtimes.torch import nets  # noqa: E402

# Both run fp32 on the same kernels, so only the order of additions may differ with the batch size.
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}


def opened(path: Path, **options: Any) -> Any:
    return open_runtime(path, Context("net", folder=path.parent, runtime=RuntimeOptions(**options)))


def expected(net: Any, *arrays: Any) -> Any:
    with torch.inference_mode():
        return net(*(torch.from_numpy(array) for array in arrays))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def convolutions(folder: Path) -> tuple[Path, Any]:
    path = folder / "convolutions.pt2"
    return path, nets.save_convolutions(path)


@pytest.fixture(scope="module")
def embedder(folder: Path) -> tuple[Path, Any]:
    path = folder / "embedder.pt2"
    return path, nets.save_embedder(path)


def images(rows: int) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, 3, 8, 8)).astype(np.float32)


def test_an_ending_in_capitals_is_the_same_kind_of_file(convolutions: tuple[Path, Any], tmp_path: Path) -> None:
    path = tmp_path / "CONVOLUTIONS.PT2"
    path.write_bytes(convolutions[0].read_bytes())
    given = images(2)
    found = opened(path).run({"pixels": given})["logits"]
    np.testing.assert_allclose(found, expected(convolutions[1], given)["logits"].numpy(), **CLOSE)


def test_inputs_and_outputs_are_named_by_the_program(convolutions: tuple[Path, Any]) -> None:
    runtime = opened(convolutions[0])
    assert runtime.inputs == [Port("pixels", "float32", (3, 8, 8))]
    assert runtime.outputs == ["logits", "features"]
    assert runtime.stacks
    assert runtime.provider == f"torch {torch.__version__} cpu"


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_results_are_those_of_the_eager_model_at_every_batch_size(convolutions: tuple[Path, Any], rows: int) -> None:
    path, net = convolutions
    found, wanted = opened(path).run({"pixels": images(rows)}), expected(net, images(rows))
    for name in ("logits", "features"):
        np.testing.assert_allclose(found[name], wanted[name].numpy(), **CLOSE)


def test_several_inputs_with_a_free_length_and_whole_numbers(embedder: tuple[Path, Any]) -> None:
    path, net = embedder
    runtime = opened(path)
    bounds = {0: (3, 16)}
    assert runtime.inputs == [Port("ids", "int64", (None,), bounds=bounds), Port("mask", "int64", (None,), bounds=bounds)]
    ids, mask = np.full((4, 9), 7), np.ones((4, 9), np.int64)
    found, wanted = runtime.run({"ids": ids, "mask": mask}), expected(net, ids, mask)
    np.testing.assert_allclose(found["output_0"], wanted[0].numpy(), **CLOSE)
    assert found["output_1"].tolist() == [9] * 4


def test_a_batch_larger_than_the_program_takes_runs_in_parts(folder: Path) -> None:
    path = folder / "bounded.pt2"
    net = nets.save_perceptron(path, {"x": {0: nets.batch_axis(1, 4)}})
    rows = np.random.default_rng(0).standard_normal((11, 4)).astype(np.float32)
    np.testing.assert_allclose(opened(path).run({"x": rows})["output"], expected(net, rows).numpy(), **CLOSE)


def test_an_automatic_dimension_takes_a_single_row(folder: Path) -> None:
    path = folder / "auto.pt2"
    net = nets.save_perceptron(path, {"x": {0: torch.export.Dim.AUTO}})
    row = np.ones((1, 4), np.float32)
    runtime = opened(path)
    np.testing.assert_allclose(runtime.run({"x": row})["output"], expected(net, row).numpy(), **CLOSE)
    assert runtime.padding_ratio == 0


def test_a_batch_fixed_at_one_runs_item_by_item(folder: Path) -> None:
    path = folder / "one.pt2"
    net = nets.save_perceptron(path, rows=1)
    loaded = load(str(path), "one")
    handler: Any = loaded.handler
    assert not handler.runtime.stacks
    answers = run(loaded, [[1, 2, 3, 4], [0, 0, 0, 1]])
    wanted = expected(net, np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32)).numpy()
    np.testing.assert_allclose([answer["output"] for answer in answers], wanted, **CLOSE)


def test_a_batch_fixed_at_another_size_is_filled_up_and_cut_back(folder: Path) -> None:
    path = folder / "four.pt2"
    net = nets.save_perceptron(path, rows=4)
    rows = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    runtime = opened(path)
    found = runtime.run({"x": rows})["output"]
    np.testing.assert_allclose(found, expected(net, rows).numpy(), **CLOSE)
    assert runtime.stacks
    assert runtime.padding_ratio == pytest.approx(2 / 8)


def run(loaded: Any, items: list[Any]) -> Any:
    return plain_all(loaded.postprocess(loaded.inference(loaded.preprocess(items))))


def test_padding_changes_no_result_and_is_counted_over_all_groups(embedder: tuple[Path, Any]) -> None:
    path, _ = embedder
    texts = [{"ids": [1] * length, "mask": [1] * length} for length in (3, 5, 3, 4, 3)]
    plain = run(load(str(path), "text"), texts)
    padded = load(str(path), "text", runtime=RuntimeOptions(batch_buckets=(2, 4)))
    for got, want in zip(run(padded, texts), plain, strict=True):
        np.testing.assert_allclose(got["output_0"], want["output_0"], **CLOSE)
        assert got["output_1"] == want["output_1"]
    # Three rows of length 3 run as 4, one row of length 4 and one of length 5 run as 2 each: 5 rows are run as 8.
    handler: Any = padded.handler
    assert handler.padding_ratio() == pytest.approx(3 / 8)


def test_a_length_that_the_program_does_not_take_is_the_callers_error(folder: Path) -> None:
    """Regression: an odd length of a dimension exported as `2 * half` failed in the program, as an error of the model (500)."""
    path = folder / "pairs.pt2"
    free = {0: nets.batch_axis(), 1: 2 * torch.export.Dim("half", min=1, max=16)}
    nets.export(nets.Pairs(), (torch.ones(2, 6),), {"x": free}, path)
    loaded = load(str(path), "pairs")
    assert loaded.preprocess is not None
    odd, long = loaded.preprocess([[1, 2, 3], [0] * 34])
    assert odd == Failure("axis 0 of x is 3, and the model takes only 2 * n there, for a whole n", "invalid_input")
    assert long == Failure("x has shape [34], the model takes [2 to 32]", "invalid_input")
    assert run(loaded, [[1, 2, 3, 4]]) == [{"output": [4, 6]}]


def test_inputs_of_one_free_length_must_agree(embedder: tuple[Path, Any]) -> None:
    loaded = load(str(embedder[0]), "embedder")
    assert loaded.preprocess is not None
    (refused,) = loaded.preprocess([{"ids": [1] * 5, "mask": [1] * 4}])
    assert refused == Failure("axis 0 of mask is 4, and must be 5 where axis 0 of ids is 5", "invalid_input")


@pytest.mark.parametrize("length", [2, 17])
def test_an_item_outside_the_bounds_of_a_free_dimension_fails_alone(embedder: tuple[Path, Any], length: int) -> None:
    loaded = load(str(embedder[0]), "text")
    assert loaded.preprocess is not None
    bad, good = loaded.preprocess([{"ids": [1] * size, "mask": [1] * size} for size in (length, 16)])
    assert isinstance(bad, Failure)
    assert f"ids has shape [{length}], the model takes [3 to 16]" in bad.message
    assert isinstance(good, dict)
    assert loaded.input_schema is not None
    ids = loaded.input_schema["properties"]["ids"]
    assert (ids["minItems"], ids["maxItems"]) == (3, 16)


def test_calls_from_several_threads_do_not_mix(convolutions: tuple[Path, Any]) -> None:
    runtime, net = opened(convolutions[0], batch_buckets=(4,)), convolutions[1]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda rows: runtime.run({"pixels": images(rows)})["logits"], range(1, 9)))
    for rows, result in enumerate(found, start=1):
        np.testing.assert_allclose(result, expected(net, images(rows))["logits"].numpy(), **CLOSE)


def test_an_array_in_read_only_memory_is_taken(convolutions: tuple[Path, Any]) -> None:
    frozen = np.frombuffer(images(2).tobytes(), np.float32).reshape(2, 3, 8, 8)
    assert opened(convolutions[0]).run({"pixels": frozen})["logits"].shape == (2, 5)


@pytest.mark.parametrize("name", ["convolutions", "embedder"])
def test_bf16_is_close_and_answers_in_float32(request: pytest.FixtureRequest, name: str) -> None:
    """bf16 has 8 bits of mantissa, so each rounding has a relative error of 2**-8, and a few roundings add up."""
    path, net = request.getfixturevalue(name)
    runtime = opened(path, precision="bf16")
    arrays = [images(3)] if name == "convolutions" else [np.full((3, 6), 7), np.ones((3, 6), np.int64)]
    found = runtime.run({port.name: array for port, array in zip(runtime.inputs, arrays, strict=True)})
    wanted = expected(net, *arrays)
    first = found[runtime.outputs[0]]
    assert first.dtype == np.float32
    plain = wanted["logits"] if name == "convolutions" else wanted[0]
    np.testing.assert_allclose(first, plain.numpy(), rtol=2e-2, atol=2e-2)
    assert not np.array_equal(first, plain.numpy())
    assert runtime.provider.endswith("cpu bf16")


def test_channels_last_changes_no_result(convolutions: tuple[Path, Any]) -> None:
    path, net = convolutions
    found = opened(path, channels_last=True).run({"pixels": images(2)})["logits"]
    np.testing.assert_allclose(found, expected(net, images(2))["logits"].numpy(), **CLOSE)


def test_outputs_can_be_renamed(embedder: tuple[Path, Any]) -> None:
    path, _ = embedder
    runtime = open_runtime(path, Context("net", options={"outputs": ["scores", "length"]}))
    assert runtime.outputs == ["scores", "length"]
    with pytest.raises(HandlerLoadError, match=r"embedder\.pt2 was loaded, but options\.outputs names 1 outputs"):
        open_runtime(path, Context("net", options={"outputs": ["scores"]}))


def test_a_batch_axis_that_is_not_the_same_everywhere_is_refused(folder: Path) -> None:
    path = folder / "axes.pt2"
    net = nets.seeded(nets.Embedder)
    args = (torch.randint(1, 50, (2, 5)), torch.ones(1, 5, dtype=torch.int64))
    nets.export(net, args, None, path)
    with pytest.raises(HandlerLoadError, match="ids: 2, mask: 1"):
        opened(path)


def test_a_result_without_the_batch_axis_is_found_at_load(folder: Path) -> None:
    class Total(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, x: Any) -> Any:
            return x.sum(0)

    path = nets.export(Total(), (torch.ones(3, 4),), {"x": {0: nets.batch_axis()}}, folder / "total.pt2")
    with pytest.raises(HandlerLoadError, match=r"output output has shape \(4,\) for a batch of 1"):
        opened(path)


def test_a_broken_file_is_told_by_name(folder: Path) -> None:
    path = folder / "broken.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("broken/models/model.json", "{}")
    with pytest.raises(HandlerLoadError, match=r"torch cannot load broken\.pt2"):
        opened(path)
    (folder / "gone.pt2").unlink(missing_ok=True)
    with pytest.raises(HandlerLoadError, match=r"no model file .*gone\.pt2"):
        opened(folder / "gone.pt2")


class Touch:
    """What a hostile file holds in place of a tensor: unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("place", ["data/sample_inputs/model.pt", "data/weights/weight_0"])
def test_pickled_code_in_an_exported_program_is_never_run(convolutions: tuple[Path, Any], tmp_path: Path, place: str) -> None:
    """torch.export.load itself falls back to full unpickling in both places."""
    hostile, marker = tmp_path / "hostile.pt2", tmp_path / "ran"
    torch.save(Touch(marker), tmp_path / "payload")
    with zipfile.ZipFile(convolutions[0]) as given, zipfile.ZipFile(hostile, "w", zipfile.ZIP_STORED) as taken:
        for name in given.namelist():
            data = given.read(name)
            if name.endswith(place):
                data = (tmp_path / "payload").read_bytes()
            if name.endswith("model_weights_config.json"):
                data = pickled(data, "weight_0") if "weights" in place else data
            taken.writestr(name, data)
    with pytest.raises(HandlerLoadError, match=r"torch cannot load hostile\.pt2"):
        opened(hostile)
    assert not marker.exists()


def pickled(config: bytes, name: str) -> bytes:
    table = json.loads(config)
    for entry in table["config"].values():
        entry["use_pickle"] = entry["use_pickle"] or entry["path_name"] == name
    return json.dumps(table).encode()


def test_a_gpu_that_is_not_there_is_never_replaced_by_the_cpu(convolutions: tuple[Path, Any]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(HandlerLoadError, match=r"'cuda:0' was asked for, but torch .* sees 0 GPUs"):
        open_runtime(convolutions[0], Context("net", device="cuda:0"))
    with pytest.raises(HandlerLoadError, match="not on 'tpu'"):
        open_runtime(convolutions[0], Context("net", device="tpu"))


def test_another_runtime_cannot_be_asked_for(convolutions: tuple[Path, Any]) -> None:
    with pytest.raises(HandlerLoadError, match=r"'onnx' cannot run a \.pt2 file; leave it out, or use torch"):
        opened(convolutions[0], runtime="onnx")


def test_a_model_of_whole_numbers_is_not_explained_and_that_is_no_error_of_the_model(folder: Path) -> None:
    """Regression: uint8 pixels have no gradients, and the answer was torch's RuntimeError with 500, not 501."""
    path = folder / "bytes.pt2"
    nets.export(nets.Colour(), (torch.zeros(2, 3, 4, 4, dtype=torch.uint8),), {"pixels": {0: nets.batch_axis()}}, path)
    loaded = load(str(path), "bytes", task="image-classification")
    (outcome,) = run_batch(loaded, [Item("image/png", loaded.handler.sample, call=Call.EXPLAIN)]).outcomes
    assert isinstance(outcome, Failed)
    assert outcome.code == "not_explainable"
