"""An extension outside the tree is on a level with ours: examples/extension, installed by pip in an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.house import ROOT

PACKAGE = ROOT / "examples" / "extension"
SOURCES = Path("src") / "penstock_jsonrpc"
DOORS = {"PENSTOCK_TEST_DOORS": "rpc_doors:RpcDoor,rpc_doors:RpcBatchDoor"}
# What is taken out of the package, by file: each leaves a door that works, and does not keep what it should.
DEFECTS: Mapping[str, tuple[str, str, str]] = {
    "forgets the role of its route": ("part.py", 'rules=RouteRules({("POST", PATH): SUBMIT}),', ""),
    "drops traceparent": ("door.py", "head=request.head,", ""),
    "drops the idempotency key": ("door.py", "request.key if params.idempotency_key is None else params.idempotency_key", '""'),
    "drops the options": ("door.py", "options_in(urlencode(params.options).encode())", 'options_in(b"")'),
    "drops the version": ("door.py", "version=params.version,", ""),
    "drops the headers of refusals": (
        "messages.py",
        "for name, value in problem.headers])",
        'for name, value in [(b"content-type", b""), (b"content-length", b"")]])',
    ),
    "lets a bad call take its batch": ("door.py", "except Exception as error:", "except KeyboardInterrupt as error:"),
}
# Which tests of the suite find them, in their order. A batch fails as a whole where one call can.
FOUND_BY = {
    "test_a_job_belongs_to_the_owner_of_its_key",
    "test_the_trace_reaches_the_job",
    "test_the_trace_comes_back",
    "test_a_repeat_with_the_same_key_is_the_same_job",
    "test_the_key_of_another_request_is_refused",
    "test_a_deadline_can_be_set",
    "test_a_priority_can_be_set",
    "test_a_version_can_be_named",
    "test_an_unknown_version_is_refused",
    "test_the_callers_own_request_id_comes_back_with_a_refusal",
}
KEPT = {"test_an_input_goes_in_and_its_output_comes_out", "test_any_text_goes_through", "test_an_unknown_model_is_refused"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has what this one has and, by pip, the extension."""
    folder = tmp_path_factory.mktemp("outside")
    venv.create(folder / "environment", with_pip=False)
    [packages] = (folder / "environment" / "lib").glob("python*/site-packages")
    here = [str(ROOT / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
    (packages / "of_the_tests.pth").write_text("".join(f"{path}\n" for path in here))
    found = folder / "environment" / "bin" / "python"
    # A build leaves its files beside the sources.
    shutil.copytree(PACKAGE, folder / "package", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run([found, "-m", "pip", "install", *options, str(folder / "package")], check=True)
    return found


def suite(python: Path, *arguments: str, sources: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
    """pytest in the extension's environment. `sources` stand before what is installed."""
    paths = os.pathsep.join(map(str, [*sources, PACKAGE / "tests"]))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTEST_"))}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**env, **DOORS, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )


def failed(said: str) -> Iterator[tuple[str, str]]:
    """Test and door of each line of pytest's summary."""
    yield from re.findall(r"^FAILED \S+::(\w+)\[(\w+)\]", said, re.MULTILINE)


def test_an_extension_of_another_package_passes_the_suite_of_all_doors(python: Path) -> None:
    done = suite(python, "tests/doors", "-k", "jsonrpc")
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr
    assert " passed" in done.stdout


def test_it_keeps_what_its_own_tests_say(python: Path) -> None:
    done = suite(python, str(PACKAGE / "tests"))
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr


def test_the_suite_finds_each_defect_of_such_a_door(python: Path, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / SOURCES, tmp_path / "penstock_jsonrpc")
    for defect, (file, text, instead) in DEFECTS.items():
        path = tmp_path / "penstock_jsonrpc" / file
        assert path.read_text().count(text) == 1, defect
        path.write_text(path.read_text().replace(text, instead))
    names = " or ".join(sorted(FOUND_BY | KEPT))
    said = suite(python, "tests/doors", "-k", f"jsonrpc and ({names})", sources=[tmp_path]).stdout
    found = set(failed(said))
    assert {test for test, door in found if door == "jsonrpc"} == FOUND_BY, said[-8_000:]
    assert {test for test, door in found if door == "jsonrpc_batch"} >= KEPT, said[-8_000:]
