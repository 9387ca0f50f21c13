"""Compiled code: torch.compile and AOTInductor packages. Compiling with g++ is slow, so there is one model of each."""

from __future__ import annotations

import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.load import load
from penstock.handlers.runtimes.contract import open_runtime
from penstock.model_spec import RuntimeOptions
from penstock.workers.child.warmup import sizes, warm_up

torch = pytest.importorskip("torch")
from tests.unit.handlers.runtimes.torch import nets  # noqa: E402

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++"),
    # These warnings come from torch's own modules, which its compiler imports.
    pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:.*LeafSpec.* is deprecated:FutureWarning"),
]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
INPUTS = {"x": {"shape": [4]}}


def rows(count: int) -> Any:
    return np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)


def wanted(net: Any, count: int) -> Any:
    with torch.inference_mode():
        return net(torch.from_numpy(rows(count))).numpy()


def opened(path: Path, options: dict[str, Any] | None = None, **runtime: Any) -> Any:
    return open_runtime(path, Context("net", folder=path.parent, options=options or {}, runtime=RuntimeOptions(**runtime)))


def graphs_compiled() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


@pytest.fixture(scope="module", autouse=True)
def _kernels_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give every run a compile cache of its own, and restore the variable, which `cache_dir` sets too."""
    with nets.quick_compiler(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.fixture(scope="module")
def net() -> Any:
    return nets.seeded(nets.Perceptron)


@pytest.fixture(scope="module")
def exported(net: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "net.pt2"
    return nets.export(net, (torch.ones(3, 4),), {"x": {0: nets.batch_axis()}}, path)


def compiled(net: Any, path: Path, *, rows: int, shapes: Any = None) -> Path:
    """A package that is compiled once per module, because g++ is the slowest part of these tests."""
    if shutil.which("g++") is None:
        pytest.skip("torch compiles with g++")
    program = torch.export.export(net, (torch.ones(rows, 4),), dynamic_shapes=shapes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.script_method` is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return path


@pytest.fixture(scope="module")
def package(net: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(net, tmp_path_factory.mktemp("package") / "net.pt2", rows=3, shapes={"x": {0: nets.batch_axis()}})


@pytest.fixture(scope="module", params=[1, 3])
def fixed_package(request: pytest.FixtureRequest, net: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A package of one batch size, and that size."""
    size = int(request.param)
    return compiled(net, tmp_path_factory.mktemp("fixed") / f"net{size}.pt2", rows=size), size


@pytest.fixture
def no_g_plus_plus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture
def only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch.compile trace as usual but run the graphs uncompiled, so that compilations are counted without g++."""
    genuine = torch.compile
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", lambda module, *, mode, dynamic: genuine(module, backend="eager", dynamic=dynamic))


def test_a_compiled_program_gives_the_same_results_at_every_size(exported: Path, net: Any) -> None:
    torch._dynamo.reset()
    runtime = opened(exported, compile="default", cache_dir="kernels")
    for count in (1, 3, 5):
        np.testing.assert_allclose(runtime.run({"x": rows(count)})["output"], wanted(net, count), **CLOSE)
    assert runtime.provider.endswith("cpu compile=default")
    assert any((exported.parent / "kernels").iterdir())


@pytest.mark.usefixtures("only_counted")
def test_without_buckets_twelve_batch_sizes_are_two_compilations(exported: Path, net: Any) -> None:
    runtime = opened(exported, compile="default")
    for count in range(1, 13):
        np.testing.assert_allclose(runtime.run({"x": rows(count)})["output"], wanted(net, count), **CLOSE)
    assert graphs_compiled() == 2


@pytest.mark.usefixtures("only_counted")
def test_with_buckets_each_is_one_compilation_however_many_there_are(exported: Path, net: Any) -> None:
    runtime = opened(exported, compile="default", batch_buckets=tuple(range(1, 13)))
    for count in range(1, 13):
        np.testing.assert_allclose(runtime.run({"x": rows(count)})["output"], wanted(net, count), **CLOSE)
    assert graphs_compiled() == 12


@pytest.mark.usefixtures("only_counted")
def test_the_call_that_compiles_as_the_model_is_loaded_is_told_as_the_first_one(exported: Path) -> None:
    """Regression: with compile=default the load took 34.7 s, but the second call of size 1, 3.9 ms, was shown as its first."""
    runtime = RuntimeOptions(compile="default", batch_buckets=(1, 4))
    loaded = load(str(exported), "net", runtime=runtime)
    assert graphs_compiled() == 1
    # With a clock that stands still, the warm-up measures no time, so every reported time was measured during the load.
    runs = warm_up(loaded, sizes(8, runtime.batch_buckets), budget_s=100, clock=lambda: 0.0).runs
    assert graphs_compiled() == 2
    assert runs[0].first_s == loaded.handler.first_call_s > 0
    assert [(run.size, run.run_s) for run in runs] == [(1, 0.0), (4, 0.0), (8, 0.0)]
    assert [run.first_s for run in runs[1:]] == [0.0, 0.0]


@pytest.mark.usefixtures("only_counted")
def test_free_lengths_are_not_compiled_one_by_one(tmp_path: Path) -> None:
    nets.save_embedder(tmp_path / "text.pt2")
    runtime = opened(tmp_path / "text.pt2", compile="default", batch_buckets=(4,))
    for length in range(3, 13):
        ids = np.full((2, length), 7)
        runtime.run({"ids": ids, "mask": np.ones_like(ids)})
    assert graphs_compiled() <= 3


@pytest.mark.usefixtures("no_g_plus_plus")
def test_compile_without_a_compiler_is_refused_at_load(exported: Path) -> None:
    with pytest.raises(HandlerLoadError, match=r"g\+\+ or clang\+\+ is not on the path"):
        opened(exported, compile="default")


@pytest.mark.usefixtures("no_g_plus_plus")
def test_a_package_runs_without_a_compiler_at_any_batch_size(package: Path, net: Any) -> None:
    runtime = opened(package, {"inputs": INPUTS})
    for count in (1, 3, 7):
        np.testing.assert_allclose(runtime.run({"x": rows(count)})["output"], wanted(net, count), **CLOSE)
    padded = opened(package, {"inputs": INPUTS, "outputs": ["scores"]}, batch_buckets=(4,))
    np.testing.assert_allclose(padded.run({"x": rows(5)})["scores"], wanted(net, 5), **CLOSE)
    assert padded.padding_ratio == pytest.approx(3 / 8)


def test_a_package_of_one_batch_size_is_refused_until_that_is_named(fixed_package: tuple[Path, int], net: Any) -> None:
    """Regression: code compiled for three rows ran two and answered wrongly with 200, as a package does not check shapes."""
    path, size = fixed_package
    with pytest.raises(HandlerLoadError, match=rf"compiled for batches of {size} alone.*set options\.fixed_batch = {size}"):
        opened(path, {"inputs": INPUTS})
    runtime = opened(path, {"inputs": INPUTS, "fixed_batch": size})
    for count in (1, 2, 5):
        np.testing.assert_allclose(runtime.run({"x": rows(count)})["output"], wanted(net, count), **CLOSE)


def test_a_package_of_one_batch_size_is_served_where_it_gets_no_other(fixed_package: tuple[Path, int], net: Any) -> None:
    path, size = fixed_package
    runtime = opened(path, {"inputs": INPUTS}, batch_buckets=(size,))
    np.testing.assert_allclose(runtime.run({"x": rows(5)})["output"], wanted(net, 5), **CLOSE)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"shape": [5]}, "unmatched dim value at 1, expected: 4, but got: 5"),
        ({"shape": ["length"]}, "unmatched dim value at 1, expected: 4, but got: 2"),
        ({"shape": [4], "dtype": "float64"}, "unmatched dtype"),
    ],
)
def test_a_package_compiled_for_other_inputs_than_declared_is_refused(package: Path, declared: Any, words: str) -> None:
    with pytest.raises(HandlerLoadError, match=rf"compiled for other inputs than options\.inputs declares: .*{words}"):
        opened(package, {"inputs": {"x": declared}})


def test_a_package_does_not_say_its_inputs_and_takes_no_options(package: Path) -> None:
    with pytest.raises(HandlerLoadError, match=r"net\.pt2 is an AOTInductor package, which does not say what its inputs are"):
        opened(package)
    with pytest.raises(HandlerLoadError, match="an AOTInductor package is compiled already"):
        opened(package, {"inputs": INPUTS}, compile="default")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ('{"AOTI_DEVICE_KEY": "cuda"}', r'was compiled for cuda and cannot run on cpu; set device = "cuda"'),
        ('{"AOTI_DEVICE_KEY": "cpu", "AOTI_CPU_ISA": "AVX1024"}', "for a processor with AVX1024, which this one lacks"),
    ],
)
def test_a_package_for_another_machine_is_refused_before_it_is_loaded(
    package: Path, tmp_path: Path, told: str, words: str
) -> None:
    if "AVX" in told and not Path("/proc/cpuinfo").is_file():
        pytest.skip("the processor does not say what it can do")
    other = tmp_path / "other.pt2"
    with zipfile.ZipFile(package) as given, zipfile.ZipFile(other, "w") as taken:
        for name in given.namelist():
            taken.writestr(name, told if name.endswith("_metadata.json") else given.read(name))
    with pytest.raises(HandlerLoadError, match=words):
        opened(other, {"inputs": INPUTS})
