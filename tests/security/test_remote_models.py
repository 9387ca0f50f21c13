"""Model files of others: what a file may not reach, and that nothing of a repository is run unless it is trusted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.runtimes.contract import open_runtime
from penstock.settings.remote_sources import read_source
from penstock.workers.fetch.cache import CacheLimits, ModelCache
from penstock.workers.fetch.choice import model_file
from penstock.workers.fetch.origin import FetchFailed, RemoteFile
from tests.model_hub import model_hub


def with_weights_at(place: str) -> onnx.ModelProto:
    """A model whose weights are four numbers in another file."""
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", place), ("offset", "0"), ("length", "16")):
        entry = weights.external_data.add()
        entry.key, entry.value = key, value
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("place", ["../secret.bin", "{outside}/secret.bin", "link.bin"])
def test_a_model_cannot_read_files_outside_its_folder_as_weights(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    file = folder / "m.onnx"
    file.write_bytes(with_weights_at(place.format(outside=tmp_path)).SerializeToString())
    with pytest.raises(HandlerLoadError, match="External data path"):
        open_runtime(file, Context("m", "1", folder=folder))


def test_settings_and_code_of_a_repository_are_not_even_fetched(tmp_path: Path) -> None:
    with model_hub() as hub:
        files = {"m.onnx": b"m" * 2_000, "penstock.toml": b"[models.x]", "handler.py": b"1/0", "sub/conftest.py": b"1/0"}
        hub.push("org/name", files)
        found = ModelCache(tmp_path, CacheLimits(1 << 20), {"HF_ENDPOINT": hub.url}).fetch("hf://org/name")
        assert [path.name for path in Path(found.path).parent.iterdir()] == ["m.onnx"]
        assert not hub.gets(".py")
        assert not hub.gets(".toml")


@pytest.mark.parametrize("file", ["net.py", "net.pt2", "net.plan", "net.engine"])
def test_no_file_that_runs_code_is_loaded_from_elsewhere_without_trust(file: str) -> None:
    for source in ("hf://org/name", f"hf://org/name@{'a' * 40}", f"hf://org/name/{file}"):
        with pytest.raises(FetchFailed):
            model_file(read_source(source), [RemoteFile(file, 1)], trust_remote_code=False)
