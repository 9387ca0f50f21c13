from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import onnx
import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.engine_cache import EngineCache, GpuTarget, cache_folder, engine_key, model_sha256
from tests.onnx_models import perceptron

GPU = GpuTarget("NVIDIA L4", "8.9", "13010")
WHOLE: dict[str, Any] = {"runtime": "tensorrt 10.9", "gpu": GPU, "precision": "fp16", "profiles": [(1, 8)], "options": {"a": 1}}


@pytest.mark.parametrize(
    "change",
    [
        {"runtime": "tensorrt 10.10"},
        {"gpu": GpuTarget("NVIDIA L40", "8.9", "13010")},
        {"gpu": GpuTarget("NVIDIA L4", "9.0", "13010")},
        {"gpu": GpuTarget("NVIDIA L4", "8.9", "13020")},
        {"gpu": None},
        {"precision": "fp32"},
        {"profiles": [(1, 16)]},
        {"options": {"a": 2}},
    ],
)
def test_the_key_changes_with_all_that_an_engine_depends_on(change: dict[str, Any]) -> None:
    assert engine_key("m", **{**WHOLE, **change}) != engine_key("m", **WHOLE)
    assert engine_key("other", **WHOLE) != engine_key("m", **WHOLE)


def test_the_key_does_not_depend_on_the_order_of_options() -> None:
    first = engine_key("m", **{**WHOLE, "options": {"a": 1, "b": 2}})
    assert first == engine_key("m", **{**WHOLE, "options": {"b": 2, "a": 1}})


def test_the_hash_of_a_model_covers_its_files_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(perceptron(), path, save_as_external_data=True, location="model.bin", size_threshold=0)
    before = model_sha256(path)
    weights = bytearray((tmp_path / "model.bin").read_bytes())
    weights[100] ^= 1
    (tmp_path / "model.bin").write_bytes(weights)
    assert model_sha256(path) != before
    (tmp_path / "model.bin").unlink()
    with pytest.raises(HandlerLoadError, match=r"keeps weights in model\.bin, which is not beside it"):
        model_sha256(path)


def test_weights_are_looked_for_beside_the_model_only(tmp_path: Path) -> None:
    model = perceptron()
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "../model.bin")
    path = tmp_path / "inner" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(model.SerializeToString())
    (tmp_path / "model.bin").write_bytes(b"there, but not to be read")
    with pytest.raises(HandlerLoadError, match="outside its own folder"):
        model_sha256(path)


@pytest.fixture
def cache(tmp_path: Path) -> EngineCache:
    return EngineCache(tmp_path / "engines")


@pytest.fixture
def makes() -> Iterator[int]:
    return count(1)


def test_what_was_made_once_is_not_made_again(cache: EngineCache, makes: Iterator[int]) -> None:
    assert cache.obtain("a.plan", lambda: b"%d" % next(makes)) == b"1"
    assert cache.obtain("a.plan", lambda: b"%d" % next(makes)) == b"1"
    assert cache.obtain("b.plan", lambda: b"%d" % next(makes)) == b"2"


@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: b"x" + data[1:], lambda data: b""])
def test_a_damaged_file_is_made_again(cache: EngineCache, makes: Iterator[int], damage: Any) -> None:
    cache.obtain("a.plan", lambda: b"%d" % next(makes) * 100)
    path = cache.folder / "a.plan"
    path.write_bytes(damage(path.read_bytes()))
    assert cache.obtain("a.plan", lambda: b"%d" % next(makes)) == b"2"
    assert cache.obtain("a.plan", lambda: b"%d" % next(makes)) == b"2"


def test_what_could_not_be_made_leaves_nothing_behind(cache: EngineCache) -> None:
    def fail() -> bytes:
        raise HandlerLoadError("no engine")

    with pytest.raises(HandlerLoadError):
        cache.obtain("a.plan", fail)
    assert [path.name for path in cache.folder.iterdir()] == ["a.plan.lock"]
    assert cache.obtain("a.plan", lambda: b"made") == b"made"


MAKER = """
import sys
from pathlib import Path
from penstock.handlers.runtimes.engine_cache import EngineCache
folder = Path(sys.argv[1])
def make():
    with open(folder / "made", "a") as file: file.write("x")
    sys.stdin.readline()
    return b"engine"
print("asking", flush=True)
print(EngineCache(folder).obtain("a.plan", make).decode(), flush=True)
"""


def test_of_two_processes_one_makes_it_and_the_other_waits(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", MAKER, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as first,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as second,
    ):
        for child in (first, second):
            assert child.stdout is not None
            assert child.stdout.readline() == "asking\n"
        for child in (first, second):
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        assert [child.stdout.read() for child in (first, second) if child.stdout] == ["engine\n"] * 2
    assert (tmp_path / "made").read_text() == "x"


def test_a_folder_that_cannot_be_written_is_told_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HandlerLoadError, match=r"the cache folder .* cannot be used: .* cache_dir"):
        EngineCache(tmp_path / "file").obtain("a.plan", lambda: b"")


def test_the_folder_is_the_one_named_or_that_of_the_user(tmp_path: Path) -> None:
    assert cache_folder("kept", tmp_path, {}) == tmp_path / "kept"
    assert cache_folder("/var/kept", tmp_path, {}) == Path("/var/kept")
    assert cache_folder("", tmp_path, {"XDG_CACHE_HOME": "/x"}) == Path("/x/penstock/engines")
    assert cache_folder("", tmp_path, {"HOME": "/home/ada"}) == Path("/home/ada/.cache/penstock/engines")
