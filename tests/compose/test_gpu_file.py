"""compose.gpu.yaml, started as far as a machine without a GPU can: its worker runs torch for CPU, and compiles a model."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock import Client
from penstock.loadtest.stack import free_port
from tests.compose.conftest import make_stack
from tests.compose.images import image_of
from tests.compose.stack import FILES, GPU_EXTRA, Refused, Stack, docker

pytestmark = pytest.mark.compose

TAG = "without-gpu"
CACHE = "/var/cache/penstock"


@pytest.fixture(scope="module")
def images(image: str) -> str:
    """The tag of both images; the one for GPUs is the torch image, which differs in torch's build alone."""
    docker("tag", image, f"penstock:{TAG}-onnx")
    image_of("torch", f"penstock:{TAG}-gpu")
    return TAG


@pytest.fixture(scope="module")
def gpu_stack(images: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(
        f"penstock-gpu-test-{secrets.token_hex(3)}",
        free_port(),
        tmp_path_factory.mktemp("secrets"),
        {},
        tag=images,
        files=(*FILES, GPU_EXTRA),
    )
    yield from make_stack(made)


def test_without_the_container_toolkit_docker_says_what_the_page_says(gpu_stack: Stack) -> None:
    if "nvidia" in docker("info", "--format", "{{.Runtimes}}"):
        pytest.skip("this engine has the container toolkit")
    with pytest.raises(Refused, match='could not select device driver "nvidia"'):
        replace(gpu_stack, files=FILES).compose("run", "--rm", "--no-deps", "worker", "true")


def test_a_gpu_worker_is_not_held_to_one_core_and_2_gb(gpu_stack: Stack) -> None:
    limits = gpu_stack.by_service()["worker"]["HostConfig"]
    assert (limits["NanoCpus"], limits["Memory"]) == (0, 16 * 2**30)


def test_a_model_that_compiles_itself_runs_and_its_code_outlives_the_container(gpu_stack: Stack) -> None:
    with Client(gpu_stack.url, gpu_stack.key) as client:
        assert client.predict("compiled", 3.0) == 7.0
        made = _compiled(gpu_stack)
        assert made, "torch.compile leaves libraries in its cache"
        gpu_stack.up("--force-recreate", "worker")
        assert _compiled(gpu_stack) >= made
        assert client.predict("compiled", -3.0) == 0.0


def _compiled(stack: Stack) -> set[str]:
    [worker] = stack.containers("worker")
    return set(stack.inside(worker["Id"], "find", CACHE, "-name", "*.so").split())
