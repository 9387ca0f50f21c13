from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.torch.archive import FileKind
from penstock.handlers.runtimes.torch.checks import check_compiler, check_options
from penstock.handlers.runtimes.torch.files import missing_instructions
from penstock.model_spec import RuntimeOptions

PLAIN = RuntimeOptions()
GRAPHS = RuntimeOptions(cuda_graphs=True, batch_buckets=(1, 4))


@pytest.mark.parametrize("kind", FileKind)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_kind_runs_everywhere_without_options(kind: FileKind, device: str) -> None:
    check_options(kind, PLAIN, device)


@pytest.mark.parametrize(
    ("kind", "options", "device", "words"),
    [
        (FileKind.EXPORTED, RuntimeOptions(precision="tf32"), "cpu", 'tf32.* needs device = "cuda"'),
        (FileKind.EXPORTED, RuntimeOptions(precision="fp16"), "cpu", "use bf16 or fp32"),
        (FileKind.PACKAGE, RuntimeOptions(precision="bf16"), "cpu", "fixed when it was compiled"),
        (FileKind.PACKAGE, RuntimeOptions(channels_last=True), "cpu", "memory format"),
        (FileKind.PACKAGE, RuntimeOptions(compile="default"), "cpu", "compiled already"),
        (FileKind.SCRIPT, RuntimeOptions(compile="default"), "cpu", "cannot look into a TorchScript program"),
        (FileKind.WEIGHTS, RuntimeOptions(compile="default", quantize="int8"), "cpu", "cannot be used together"),
        (FileKind.WEIGHTS, RuntimeOptions(quantize="int8"), "cuda", "on the CPU alone"),
        (FileKind.WEIGHTS, RuntimeOptions(quantize="int8", precision="bf16"), "cpu", "starts from a plain fp32 model"),
        (FileKind.EXPORTED, RuntimeOptions(quantize="int8"), "cpu", "serve its weights with a model class"),
        (FileKind.EXPORTED, GRAPHS, "cpu", 'cuda_graphs .* need device = "cuda"'),
        (FileKind.PACKAGE, GRAPHS, "cuda", "not recorded around an AOTInductor package"),
        (FileKind.EXPORTED, replace(GRAPHS, batch_buckets=()), "cuda", r"batch_buckets = \["),
        (FileKind.EXPORTED, replace(GRAPHS, compile="reduce-overhead"), "cuda", "records CUDA graphs itself"),
        (FileKind.EXPORTED, RuntimeOptions(provider="cuda"), "cuda", "options of ONNX Runtime"),
        (FileKind.EXPORTED, RuntimeOptions(session={"a": 1}), "cpu", "options of ONNX Runtime"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_way_out(
    kind: FileKind, options: RuntimeOptions, device: str, words: str
) -> None:
    with pytest.raises(HandlerLoadError, match=words):
        check_options(kind, options, device)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FileKind.EXPORTED, RuntimeOptions(precision="tf32")),
        (FileKind.WEIGHTS, RuntimeOptions(precision="fp16", compile="max-autotune")),
        (FileKind.SCRIPT, GRAPHS),
        (FileKind.EXPORTED, replace(GRAPHS, compile="default", precision="bf16", channels_last=True)),
    ],
)
def test_what_a_gpu_can_do_is_allowed_there(kind: FileKind, options: RuntimeOptions) -> None:
    check_options(kind, options, "cuda")


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(HandlerLoadError) as caught:
        check_options(FileKind.PACKAGE, RuntimeOptions(precision="fp16", compile="default", quantize="int8"), "cpu")
    assert caught.value.message.count(";") >= 4


def test_compile_without_a_compiler_says_what_to_install() -> None:
    with pytest.raises(HandlerLoadError, match=r"g\+\+ or clang\+\+ is not on the path; install g\+\+"):
        check_compiler("cpu", found=lambda _: None, compiler=None)
    with pytest.raises(HandlerLoadError, match="gcc or cc or clang"):
        check_compiler("cuda", found=lambda _: None, compiler=None)
    with pytest.raises(HandlerLoadError, match=r"my-c\+\+ is not on the path"):
        check_compiler("cpu", found={"g++": "/usr/bin/g++"}.get, compiler="my-c++")
    check_compiler("cpu", found={"clang++": "/usr/bin/clang++"}.get, compiler=None)


def test_a_package_of_a_newer_processor_is_known_before_it_runs() -> None:
    assert missing_instructions("AVX512 AVX512_VNNI", {"avx2", "avx512f"}) == ["AVX512_VNNI"]
    assert missing_instructions("AVX2", {"avx2"}) == []
    assert missing_instructions("AVX512 AMX_TILE", {"avx512f"}) == ["AMX_TILE"]
    assert missing_instructions("AVX512", set()) == []
    assert missing_instructions("ASIMD", {"avx2"}) == []
