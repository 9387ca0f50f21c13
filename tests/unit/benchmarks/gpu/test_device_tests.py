from __future__ import annotations

from pathlib import Path

from benchmarks.gpu import device_tests
from benchmarks.gpu.device_tests import run_tests

TESTS = Path(__file__).resolve().parents[3]
# The mark is written in two parts, because this file would otherwise count as a file with GPU tests.
MARK = "pytest.mark." + "gpu"
SOURCE = f"""
import warnings
import pytest

pytestmark = {MARK}


def test_good():
    warnings.warn("libraries of other versions", DeprecationWarning)


def test_bad():
    assert 1 == 2, "one is not two"


@pytest.mark.skipif(True, reason="needs the extra onnx-gpu")
def test_absent():
    pass
"""


def _file(folder: Path, name: str, source: str) -> str:
    (folder / name).write_text(source)
    return str(folder / name)


def test_the_outcome_says_what_failed_and_what_was_skipped_for_which_reason(tmp_path: Path) -> None:
    absent = f"import pytest\npytestmark = {MARK}\npytest.importorskip('no_such_library')\n"
    found = run_tests(files=[_file(tmp_path, "test_one.py", SOURCE), _file(tmp_path, "test_two.py", absent)])
    assert (found["exit_code"], found["passed"]) == (1, 1)
    [(bad, why)] = found["failed"].items()
    assert bad.endswith("test_bad")
    assert why == "AssertionError: one is not two"
    reasons = sorted(found["skipped"].values())
    assert len(reasons) == 2
    assert "no_such_library" in reasons[0]
    assert reasons[1] == "needs the extra onnx-gpu"


def test_a_test_that_hangs_is_ended_and_reported(tmp_path: Path) -> None:
    source = f"import time, pytest\n@{MARK}\ndef test_hangs():\n    time.sleep(600)\n"
    found = run_tests(1.0, [_file(tmp_path, "test_hanging.py", source)])
    assert (found["exit_code"], found["passed"]) == (None, 0)
    assert found["failed"] == {"pytest": "still running after 1 s, and ended"}


def test_a_pytest_that_cannot_begin_is_no_success(tmp_path: Path) -> None:
    found = run_tests(files=[str(tmp_path / "test_absent.py")])
    assert found["failed"] == {"pytest": f"ended with code {found['exit_code']}; see its output on the terminal"}


def test_the_files_with_such_tests_are_found_and_need_nothing_of_the_suite() -> None:
    """Regression: the search collected the whole suite and failed, because GPU machines lack a package of the test extra."""
    files = device_tests.gpu_tests(TESTS)
    names = {Path(file).relative_to(TESTS).as_posix() for file in files}
    assert "unit/handlers/runtimes/torch/test_gpu.py" in names
    assert Path(__file__).relative_to(TESTS).as_posix() not in names
    assert device_tests._pytest([*device_tests._OPTIONS, "--collect-only", *files], 120.0) == 0


def test_a_file_with_such_a_test_is_found_by_its_text(tmp_path: Path) -> None:
    wanted = _file(tmp_path, "test_one.py", SOURCE)
    _file(tmp_path, "test_other.py", "def test_other(): pass")
    assert device_tests.gpu_tests(tmp_path) == [wanted]
