from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import penstock
from penstock import errors
from tests.release import TOP_FOLDERS, build_distributions

ROOT = Path(__file__).parents[2]
with (ROOT / "pyproject.toml").open("rb") as _file:
    PYPROJECT: dict[str, Any] = tomllib.load(_file)
LEFT_OUT = ("*.pyc", "*.pyo")
HEAVY = {"torch", "celery", "kombu", "fastapi", "starlette", "pydantic", "redis", "numpy", "onnxruntime", "uvicorn", "httpx2"}


def files_of_the_tree() -> set[str]:
    """Return the paths that the wheel should contain: every file below the package folders."""
    found = {"penstock/__main__.py"}  # a link to cli/entry.py
    for folder in TOP_FOLDERS:
        inside = Path("penstock") if folder == "core" else Path("penstock", folder)
        for path in (ROOT / folder).rglob("*"):
            name = str(inside / path.relative_to(ROOT / folder))
            if path.is_file() and not any(fnmatch(name, pattern) for pattern in LEFT_OUT):
                found.add(name)
    return found


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive, and with the wheel that is built from it."""
    return build_distributions(tmp_path_factory.mktemp("source") / "penstock")


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == files_of_the_tree()


def test_the_wheel_carries_its_licence_and_its_command(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        info = {Path(name).name: name for name in archive.namelist() if ".dist-info/" in name}
        assert "penstock = penstock.cli.entry:main" in archive.read(info["entry_points.txt"]).decode()
        assert b"Apache License" in archive.read(info["LICENSE"])


def test_the_source_archive_holds_what_the_wheel_is_built_from(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in files_of_the_tree()} <= names
    assert {"pyproject.toml", "LICENSE", "README.md"} <= names


def test_an_installed_checkout_is_found_without_an_import_hook(tmp_path: Path) -> None:
    """Type checkers and editors run no hooks: an editable install must put one plain path into its .pth file."""
    program = f"from setuptools import build_meta; print(build_meta.build_editable({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", program], cwd=_checkout(tmp_path), capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        modules = {name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" not in name}
    assert [name.rpartition(".")[2] for name in modules] == ["pth"]
    assert [text.split() for text in modules.values()] == [[str(tmp_path / "checkout" / "src")]]


def _checkout(folder: Path) -> Path:
    copy = folder / "checkout"
    shutil.copytree(ROOT / "src", copy / "src", symlinks=True)
    for name in (*TOP_FOLDERS, "pyproject.toml", "README.md", "LICENSE"):
        (copy / name).symlink_to(ROOT / name)
    return copy


def test_no_folder_of_the_root_shadows_the_installed_package() -> None:
    assert not (ROOT / "penstock").exists()


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['penstock', '--help']\n"
        "from penstock.cli.entry import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print('modules:', *sorted(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    loaded = {name.partition(".")[0] for name in run.stdout.rpartition("modules:")[2].split()}
    assert loaded & HEAVY == set()


@pytest.mark.parametrize(
    ("extra", "package", "admitted", "refused"),
    [
        # Up to 1.27 the wheel is built for CUDA 12, or looks for NVIDIA's packages at their former paths.
        ("onnx-gpu", "onnxruntime-gpu", "1.28.0", "1.27.0"),
        # The cuDNN package requires any cuBLAS, but ONNX Runtime needs libcublas.so.13.
        ("onnx-gpu", "nvidia-cublas", "13.10.0.20", "14.0.0.1"),
        # Before torch 2.9, ExportedProgram.module() has no check_guards, so every exported program ends in a TypeError.
        ("torch", "torch", "2.9.0", "2.8.0"),
        ("explain", "torch", "2.9.0", "2.8.0"),
        # TensorRT 11 has no libnvinfer.so.10.
        ("onnx-tensorrt", "tensorrt-cu13", "10.16.1.11", "11.4.0.106"),
    ],
)
def test_an_extra_brings_no_version_that_its_runtime_cannot_use(extra: str, package: str, admitted: str, refused: str) -> None:
    lines = map(Requirement, PYPROJECT["project"]["optional-dependencies"][extra])
    (versions,) = [line.specifier for line in lines if line.name == package]
    assert (versions.contains(admitted), versions.contains(refused)) == (True, False)


def test_the_gpu_build_of_onnx_runtime_comes_with_the_libraries_it_is_linked_against() -> None:
    # Regression: the wheel alone requires none of them, so no model ran on a GPU, and the advice was to install the wheel.
    lines = map(Requirement, PYPROJECT["project"]["optional-dependencies"]["onnx-gpu"])
    (extras,) = [line.extras for line in lines if line.name == "onnxruntime-gpu"]
    assert extras == {"cuda", "cudnn"}


def test_importing_penstock_imports_none_of_its_parts() -> None:
    program = "import sys, penstock; print(*[name for name in sys.modules if name.startswith('penstock.')])"
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_the_export_list_names_what_can_be_loaded_and_what_type_checkers_see() -> None:
    tree = ast.parse((ROOT / "core" / "__init__.py").read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {(alias.name, node.module) for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(penstock._HOMES.items())
    assert sorted(penstock.__all__) == sorted([*penstock._HOMES, "__version__"])


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_exported_name_loads(name: str) -> None:
    value = getattr(penstock, name)
    if name in penstock._HOMES:
        assert value is getattr(importlib.import_module(penstock._HOMES[name]), name)


def test_a_name_that_is_not_exported_is_refused_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match="it exports ArrayHandler"):
        penstock.Clinet  # noqa: B018


def test_an_error_is_a_name_of_penstock_errors_and_loads_with_the_client_where_that_defines_it() -> None:
    assert "Overloaded" not in penstock.__all__
    for name, home in errors.CLIENT_ERRORS.items():
        assert getattr(errors, name) is getattr(importlib.import_module(home), name)
    assert not hasattr(errors, "Overlaoded")


def test_the_names_that_users_type_are_at_most_twenty_five() -> None:
    assert len(penstock.__all__) <= 25


def test_every_error_that_the_page_of_the_client_names_is_one_of_penstock_errors() -> None:
    _, _, behind = (ROOT / "docs" / "reference" / "client.md").read_text().partition("| Error | Means |\n")
    named = set(re.findall(r"`([A-Z]\w+)`", "".join(line.split("|")[1] for line in behind.split("\n\n")[0].splitlines())))
    assert len(named) > 10
    assert [name for name in sorted(named) if not hasattr(errors, name)] == []
