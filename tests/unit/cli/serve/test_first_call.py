from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.serve.first_call import other_name

MODEL = "import penstock\n\n\n@penstock.model{call}\ndef {name}(x: int) -> int:\n    return x\n"


@pytest.mark.parametrize("call", ["", "(max_batch_size=4)"])
def test_a_function_of_another_name_than_its_file_is_noticed(tmp_path: Path, call: str) -> None:
    """Regression: the model of classify() in digits.py is digits, and nothing said so to who called classify."""
    file = tmp_path / "digits.py"
    file.write_text(MODEL.format(call=call, name="classify"))
    assert other_name("digits", str(file)) == "classify"
    assert other_name("numbers", str(file)) == "", "somebody named it"
    file.write_text(MODEL.format(call=call, name="digits"))
    assert other_name("digits", str(file)) == ""


def test_a_source_that_names_its_object_or_is_no_code_is_as_its_user_wrote_it(tmp_path: Path) -> None:
    for source in (f"{tmp_path}/digits.py:classify", f"{tmp_path}/digits.onnx", "package.digits:classify", "hf://org/digits"):
        assert other_name("digits", source) == ""


def test_a_file_that_cannot_be_read_does_not_end_the_command_that_announces_it(tmp_path: Path) -> None:
    """`penstock up` announces models although their files are broken or gone, if it was asked to go on."""
    file = tmp_path / "digits.py"
    assert other_name("digits", str(file)) == ""
    file.write_text("def (")
    assert other_name("digits", str(file)) == ""
