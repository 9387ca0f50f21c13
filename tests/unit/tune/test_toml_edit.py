from __future__ import annotations

import tomllib

import pytest

from penstock.errors import ConfigError
from penstock.tune.toml_edit import with_settings

_TEXT = """\
# What we serve.
[gateway]
port = 8080  # behind nginx

[models.digits]
source = "handler.py:Digits"
max_batch_size = 16  # by hand
threads = 1

[models.other]
source = "x.py"
"""


def test_only_the_lines_that_change_change_and_remarks_stay() -> None:
    after = with_settings(_TEXT, "models", {"max_batch_size": 4, "threads": 1, "precision": "bf16"}, name="digits")
    assert after == _TEXT.replace("max_batch_size = 16  # by hand", "max_batch_size = 4  # by hand").replace(
        "threads = 1\n", 'threads = 1\nprecision = "bf16"\n'
    )


def test_a_list_on_one_line_is_written_anew_and_its_remark_stays() -> None:
    before = '[models.m]\nsource = "x.onnx"\nbatch_buckets = [1, 8, 32]  # as built\n'
    after = with_settings(before, "models", {"max_batch_size": 4, "batch_buckets": [1, 4]}, name="m")
    assert after == '[models.m]\nsource = "x.onnx"\nbatch_buckets = [1, 4]  # as built\nmax_batch_size = 4\n'


def test_a_model_that_is_not_there_gets_a_table_of_its_own() -> None:
    after = with_settings(_TEXT, "models", {"source": "y.py", "slots": 2}, name="a.b")
    assert tomllib.loads(after)["models"]["a.b"] == {"source": "y.py", "slots": 2}
    assert after.startswith(_TEXT)


def test_an_empty_file_becomes_one_table() -> None:
    assert with_settings("", "worker", {"pinning": "none"}) == '[worker]\npinning = "none"\n'


def test_a_number_written_in_another_way_is_left_as_it_is() -> None:
    text = "[models.m]\nmax_wait_s = 0.010\n"
    assert with_settings(text, "models", {"max_wait_s": 0.01}, name="m") == text


def test_an_inline_table_and_a_dotted_key_are_edited_where_they_stand() -> None:
    inline = with_settings('models = { m = { source = "x.py" } }\n', "models", {"slots": 2}, name="m")
    assert inline == 'models = { m = { source = "x.py", slots = 2} }\n'
    dotted = with_settings('[models]\nm.source = "x.py"\n', "models", {"slots": 2}, name="m")
    assert dotted == '[models]\nm.source = "x.py"\nm.slots = 2\n'


def test_a_value_over_several_lines_is_left_alone_because_comments_inside_it_would_be_lost() -> None:
    text = "[models.m]\nbatch_buckets = [\n  1, # alone\n  8,\n]\n"
    assert with_settings(text, "models", {"batch_buckets": [1, 8]}, name="m").startswith(text)
    with pytest.raises(ConfigError, match="cannot edit") as refused:
        with_settings(text, "models", {"batch_buckets": [1, 4]}, name="m")
    assert "batch_buckets = [1, 4]" in (refused.value.hint or "")


def test_line_ends_of_windows_do_not_hinder() -> None:
    text = "[models.m]\r\nslots = 1  # one\r\n"
    assert with_settings(text, "models", {"slots": 2}, name="m") == "[models.m]\r\nslots = 2  # one\r\n"


def test_a_table_is_found_below_others_of_its_kind() -> None:
    text = '[models.a]\nsource = "a"\n\n[gateway]\nport = 1\n\n[models.b]\nsource = "b"\n\n[models.b.options]\nx = 1\n'
    after = with_settings(text, "models", {"slots": 2}, name="b")
    assert after == text.replace('source = "b"\n', 'source = "b"\nslots = 2\n')
