"""From the `handler` of a manifest to what is called; and what is said of archives that cannot be served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.worker.archives import LOADER
from penstock.handlers.load import load
from tests.extensions.torchserve.child.archives import item, loaded, output, write_archive

ANSWERS = "[row['body'] for row in data or []]"
FUNCTION = f"def handle(data, context):\n    return {ANSWERS}\n"
CLASS = f"class Mine:\n    def handle(self, data, context):\n        return {ANSWERS}\n"


def answered(folder: Path, source: str, **said: Any) -> Any:
    return json.loads(output(loaded(folder, source, **said), item(b"[1]")).data)


def failing(method: str, error: str) -> str:
    return f"class Mine:\n    def {method}:\n        raise {error}\n    def handle(self, data, context): ...\n"


def refusal(folder: Path, source: str, **said: Any) -> str:
    with pytest.raises(HandlerLoadError) as caught:
        loaded(folder, source, **said)
    return caught.value.message


@pytest.mark.parametrize(
    ("source", "handler"),
    [
        (FUNCTION, "handler.py"),
        (FUNCTION, "handler"),
        (FUNCTION.replace("handle(", "serve("), "handler.py:serve"),
        (f"class Other:\n    pass\n{FUNCTION}", "handler.py"),
        (CLASS, "handler.py"),
        (CLASS, "handler.py:Mine"),
        (f"class Helper:\n    pass\n{CLASS}", "handler.py"),
        (f"from ts.torch_handler.base_handler import BaseHandler\n{CLASS}", "handler.py"),
        (f"class Base:\n    pass\n{CLASS.replace('Mine', 'Mine(Base)')}", "somewhere/else/handler.py"),
    ],
)
def test_a_function_or_the_one_class_with_handle_is_called(tmp_path: Path, source: str, handler: str) -> None:
    assert answered(tmp_path, source, handler=handler) == [1]


def test_a_subclass_of_base_handler_is_initialised_and_may_override_handle(tmp_path: Path) -> None:
    source = (
        "from ts.torch_handler.base_handler import BaseHandler\nclass Mine(BaseHandler):\n"
        "    def initialize(self, context):\n        self.factor = context.model_yaml_config['by']\n"
        "    def preprocess(self, data):\n        return [row['body'][0] for row in data]\n"
        "    def inference(self, data):\n        return [one * self.factor for one in data]\n"
        "    def postprocess(self, data):\n        return data\n"
    )
    (tmp_path / "config.yaml").write_text("by: 3\n")
    assert answered(tmp_path, source, configFile="config.yaml") == 3


def test_the_option_stands_over_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(FUNCTION)
    assert answered(tmp_path, "raise ValueError", options={"handler": "other.py"}) == [1]


def test_a_folder_without_a_manifest_needs_the_option(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(FUNCTION)
    model = load(str(tmp_path), "mine", options={"handler": "other.py"}, loader=LOADER)
    assert json.loads(output(model, item(b"1")).data) == 1
    with pytest.raises(HandlerLoadError, match="names no handler"):
        load(str(tmp_path), "mine", loader=LOADER)


def test_handlers_of_other_files_of_the_archive_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("VALUE = 4\n")
    (tmp_path / "words.txt").write_text("five")
    source = (
        "from parts import VALUE\nwith open('words.txt') as file:\n    WORD = file.read()\n"
        "def handle(data, context):\n    return [[VALUE, WORD]]\n"
    )
    assert answered(tmp_path, source) == [4, "five"]


def test_a_handler_called_as_a_module_that_is_loaded_already_is_the_archives_own(tmp_path: Path) -> None:
    write_archive(tmp_path, "", handler="json.py")
    (tmp_path / "json.py").write_text(FUNCTION)
    model = load(str(tmp_path), "mine", loader=LOADER)
    assert output(model, item(b"7")).data == b"7"


def test_no_class_or_several_are_refused(tmp_path: Path) -> None:
    assert "it defines none" in refusal(tmp_path / "none", "x = 1\n")
    assert "it defines none" in refusal(tmp_path / "helper", "class Helper:\n    pass\n")
    two = CLASS + CLASS.replace("Mine", "Other")
    assert "it defines Mine, Other" in refusal(tmp_path / "two", two)


def test_a_handler_that_is_neither_in_the_archive_nor_built_in_is_refused(tmp_path: Path) -> None:
    assert "image_guesser" in refusal(tmp_path, FUNCTION, handler="image_guesser")


def test_the_archives_own_import_error_is_told_and_no_built_in_stands_for_it(tmp_path: Path) -> None:
    write_archive(tmp_path, "", handler="image_classifier.py")
    (tmp_path / "image_classifier.py").write_text("import no_such_package\n")
    with pytest.raises(HandlerLoadError, match="needs the module 'no_such_package'"):
        load(str(tmp_path), "mine", loader=LOADER)


def test_a_name_that_ts_does_not_have_is_told_with_its_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, "import os\nfrom ts.handler_utils.micro_batching import MicroBatching\n")
    assert "handler.py, line 2" in message
    assert "micro_batching" in message


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('Found no NVIDIA driver on your system')\n", "has no GPU (RuntimeError: Found no NVIDIA"),
        (
            failing("__init__(self)", "AssertionError('Torch not compiled with CUDA enabled')"),
            "Mine uses CUDA",
        ),
        (
            failing("initialize(self, context)", "RuntimeError('No CUDA GPUs are available')"),
            'device = "cuda"',
        ),
        (
            failing("initialize(self, context)", "FileNotFoundError('weights.pt')"),
            "FileNotFoundError: weights.pt",
        ),
        ("class Mine:\n    def __init__(self, path): ...\n    def handle(self, data, context): ...\n", "without arguments"),
        ("def handle(data, context):\n    return [row for row in data]\n", "TypeError"),
        ("import sys\nsys.exit(3)\n", "ended the process"),
        ("def handle(data context): ...\n", "line 1"),
    ],
)
def test_what_fails_at_load_is_said_in_full(tmp_path: Path, source: str, words: str) -> None:
    assert words in refusal(tmp_path, source)


def test_a_built_in_handler_goes_by_its_name(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert "No model weights could be loaded" in refusal(tmp_path, "", handler="base_handler", serializedFile="")


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mar").write_bytes(b"PK")
    for name, words in (("a.mar", "is packed"), ("b.mar", "does not exist")):
        with pytest.raises(HandlerLoadError, match=words):
            load(str(tmp_path / name), "mine", loader=LOADER)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"service_envelop": "json"}, "no option 'service_envelop'; did you mean service_envelope?"),
        ({"threads": 3}, "Its options are handler, service_envelope"),
        ({"decode_input_request": "no"}, "must be bool, not 'no'"),
        ({"metrics": []}, "must be dict"),
        ({"service_envelope": "xml"}, "it is body, json, kserve, kservev2"),
    ],
)
def test_options_are_checked_by_name_and_type(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    assert words in refusal(tmp_path, FUNCTION, options=options)


@pytest.mark.parametrize("line", ["parallelType: tp", "sequenceBatching: true", "micro_batching: {}\ncontinuousBatching: true"])
def test_a_configuration_that_changes_how_the_handler_works_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "model-config.yaml").write_text(line + "\n")
    message = refusal(tmp_path, FUNCTION, configFile="model-config.yaml")
    assert line.split("\n")[-1].partition(":")[0] in message


def test_images_of_any_size_are_read_if_the_archive_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    loaded(tmp_path, FUNCTION, options={"limit_max_image_pixels": False})
    assert Image.MAX_IMAGE_PIXELS is None
