"""Where the variables of a model come from, and that no message shows a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.errors import ConfigError
from penstock.handlers.metrics.samples import MetricKind, MetricSample
from penstock.model_spec import Variable
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import BatchDone, DeviceLost, Failed, LoadFailed, MetricSamples, Output, ShardDone
from penstock.workers.slot.child.environment import Mask, child_environment, read_variables

SECRET = "hunter2-hunter2"


def read(**variables: Variable) -> dict[str, str]:
    return read_variables("m", "secrets", variables, {"OURS": "theirs"})


def test_each_source_gives_its_value_and_a_file_loses_the_line_break_at_its_end(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b" two\nlines\r\n")
    found = read(A=Variable(text=""), B=Variable(of="OURS"), C=Variable(file=str(file)))
    assert found == {"A": "", "B": "theirs", "C": " two\nlines"}


def test_a_missing_source_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"models\.m\.secrets\.KEY: the worker's environment has no variable GONE"):
        read(KEY=Variable(of="GONE"))
    with pytest.raises(ConfigError, match=r"models\.m\.secrets\.KEY: the file .*gone cannot be read: No such file"):
        read(KEY=Variable(file=str(tmp_path / "gone")))


def test_a_file_that_is_no_text_is_refused_without_its_content(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"\xff\xfesecret")
    with pytest.raises(ConfigError, match="it is no UTF-8 text") as caught:
        read(KEY=Variable(file=str(file)))
    assert "secret\\" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_models_variables_win_over_inherited_ones_and_the_workers_own_over_both() -> None:
    inherited = {"HF_HOME": "/theirs", "PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x"}
    seen = child_environment(inherited, Pin((0,), 3), {"HF_HOME": "/models", "OMP_NUM_THREADS": "64", "API_KEY": SECRET})
    assert (seen["HF_HOME"], seen["PATH"], seen["OMP_NUM_THREADS"], seen["API_KEY"]) == ("/models", "/bin", "3", SECRET)
    assert "AWS_SECRET_ACCESS_KEY" not in seen


def test_every_message_of_a_child_is_masked_and_no_output() -> None:
    mask, told = Mask([SECRET, "short"]), f"KeyError: {SECRET} at a short place"
    done = BatchDone(1, [Failed("handler_error", told), Output("text/plain", SECRET.encode())], 0.0, 0.0, 0.0, 0.0, 0.0)
    hidden = "KeyError: *** at a short place"
    assert mask.text(told) == hidden
    assert mask.frame(LoadFailed(told)) == LoadFailed(hidden)
    assert mask.frame(DeviceLost(told)) == DeviceLost(hidden)
    assert mask.frame(ShardDone(1, done)) == ShardDone(1, done)
    counted = MetricSample("hits", MetricKind.COUNTER, 1.0, ("key",), (SECRET,), help=told)
    assert mask.frame(MetricSamples([counted])) == MetricSamples([replace(counted, label_values=("***",), help=hidden)])
    assert done.outcomes == [Failed("handler_error", hidden), Output("text/plain", SECRET.encode())]


def test_of_two_secrets_one_of_which_contains_the_other_nothing_is_left() -> None:
    assert Mask(["hunter2", "hunter2-hunter2"]).text("<hunter2-hunter2> <hunter2>") == "<***> <***>"
