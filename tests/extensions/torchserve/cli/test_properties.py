"""config.properties is read as Java reads it, with TorchServe's variables."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.extensions.torchserve.cli.properties import read_properties, with_environment

READ = {
    "a=1": {"a": "1"},
    "  a  =  1 2  ": {"a": "1 2  "},
    "a:1\nb 2\nc\n": {"a": "1", "b": "2", "c": ""},
    "# no\n! no\n\na=1#2": {"a": "1#2"},
    'models={\\\n    "m": {\\\n  }\\\n}\nb=2': {"models": '{"m": {}}', "b": "2"},
    "a=1\\\\\nb=2": {"a": "1\\", "b": "2"},
    "a=\\\n# not a comment\nb=2": {"a": "# not a comment", "b": "2"},
    "a\\=b\\:c\\ d=1": {"a=b:c d": "1"},
    "a=\\u00e9\\t\\q\\u12": {"a": "é\tqu12"},
    "a==1=2": {"a": "=1=2"},
    "a=1\r\nb=2\r\n": {"a": "1", "b": "2"},
    "a=1\na=2": {"a": "2"},
    "a=1\\": {"a": "1"},
    "\\": {},
    "": {},
}


@pytest.mark.parametrize("text", READ, ids=repr)
def test_lines_are_read_as_java_reads_them(text: str) -> None:
    assert read_properties(text) == READ[text]


def test_variables_stand_where_the_file_names_them() -> None:
    written = {"model_store": "$$HOME$$/store/$$NAME$$", "price": "5$$"}
    found = with_environment(written, {"HOME": "/home", "NAME": "a", "TS_MODEL_STORE": "/no"})
    assert found == {"model_store": "/home/store/a", "price": "5$$"}
    with pytest.raises(ConfigError) as refused:
        with_environment(written, {"HOME": "/home"})
    assert refused.value.faults == ["model_store: the variable NAME is not set"]


def test_variables_of_keys_stand_over_the_file_if_it_says_so() -> None:
    environment = {"TS_JOB_QUEUE_SIZE": "7", "TS_CONFIG_FILE": "x", "OTHER": "y"}
    assert with_environment({"enable_envvars_config": "true", "job_queue_size": "1"}, environment) == {
        "enable_envvars_config": "true",
        "job_queue_size": "7",
    }
    assert with_environment({"job_queue_size": "1"}, environment) == {"job_queue_size": "1"}
