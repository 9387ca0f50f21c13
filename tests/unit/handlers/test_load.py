from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.load import import_model, load
from penstock.model_spec import RuntimeOptions

TWO = """
from penstock import Handler
class First(Handler):
    def inference(self, batch): return batch
class Second(First):
    pass
"""
SAME = "    def inference(self, batch): return batch\n"
NO_START = """
import penstock
class A(penstock.Handler):
    def initialize(self, context): {}
    def inference(self, batch): return batch
"""


@pytest.fixture(autouse=True)
def _import_state_restored() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("penstock_model_") or name == "sibling":
            del sys.modules[name]


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(dedent(text))
    return str(path)


def refusal(source: str) -> str:
    with pytest.raises(HandlerLoadError) as caught:
        load(source, "mine")
    return str(caught.value)


def test_the_only_handler_of_a_file_is_loaded_and_told_its_context(tmp_path: Path) -> None:
    source = written(
        tmp_path,
        """
        from penstock import Handler
        class Mine(Handler):
            def initialize(self, context): self.context = context
            def inference(self, batch): return batch
        """,
    )
    loaded = load(source, "mine", version="2", threads=3, options={"k": 1})
    context = loaded.handler.context  # type: ignore[attr-defined]
    assert (context.model, context.version, context.threads, context.options) == ("mine", "2", 3, {"k": 1})
    assert context.folder == tmp_path
    assert loaded.preprocess is None
    assert loaded.postprocess is None


def test_a_decorated_function_is_loaded_with_its_schemas(tmp_path: Path) -> None:
    source = written(
        tmp_path,
        """
        from __future__ import annotations
        from dataclasses import dataclass
        import penstock
        @dataclass
        class Box:
            x: int
        @penstock.model(max_batch_size=5)
        def grow(box: Box) -> int:
            "Adds one."
            return box.x + 1
        """,
    )
    info = load(source, "grow").info()
    assert info.input_schema is not None
    assert info.input_schema["$defs"]["Box"]["required"] == ["x"]
    assert (info.output_schema, info.accepts, info.description) == ({"type": "integer"}, ("application/json",), "Adds one.")


def test_declared_defaults_are_read_without_loading_weights(tmp_path: Path) -> None:
    source = written(
        tmp_path,
        """
        from penstock import Handler
        class Mine(Handler):
            max_batch_size = 12
            def initialize(self, context): raise RuntimeError("loaded")
            def inference(self, batch): return batch
        """,
    )
    assert import_model(source).attributes.max_batch_size == 12


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    written(tmp_path, "ANSWER = 42", "sibling.py")
    source = written(
        tmp_path,
        """
        import penstock
        from sibling import ANSWER
        @penstock.model
        def answer(x: int) -> int: return ANSWER
        """,
    )
    assert load(source, "answer").inference([1]) == [42]


def test_a_name_picks_one_of_several(tmp_path: Path) -> None:
    assert import_model(written(tmp_path, TWO) + ":Second").label == "Second"


def test_several_models_without_a_name_are_listed(tmp_path: Path) -> None:
    assert "it holds First, Second: append one, as in :First" in refusal(written(tmp_path, TWO))


def test_a_wrong_name_lists_the_right_ones(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, TWO) + ":Third")
    assert "'Third'" in message
    assert "First, Second" in message


PLAIN = """
from json import dumps

def double(x: int) -> int:
    return 2 * x

def _helper():
    pass
"""


def test_a_plain_function_that_is_named_is_a_model(tmp_path: Path) -> None:
    # Regression: a function that was asked for by its name was refused for want of a decorator.
    found = load(written(tmp_path, PLAIN) + ":double", "double")
    assert found.inference([3]) == [6]
    assert found.input_schema == {"type": "integer"}


def test_a_file_of_plain_functions_says_how_to_name_one(tmp_path: Path) -> None:
    assert "it has the functions double: append one, as in :double" in refusal(written(tmp_path, PLAIN))


def test_a_file_without_a_model_says_how_to_make_one(tmp_path: Path) -> None:
    assert "subclass penstock.Handler or decorate" in refusal(written(tmp_path, "from penstock import Handler"))


def test_an_installed_module_is_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, TWO, "sibling.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert import_model("sibling:First").label == "First"


@pytest.mark.parametrize("source", ["model.other", "no/such/thing", "https://example.org/x"])
def test_a_source_of_an_unknown_kind_lists_the_known_ones(source: str) -> None:
    assert "package.module:Name" in refusal(source)


@pytest.mark.parametrize("source", ["nowhere.py", "nowhere.py:Name", "nowhere.onnx"])
def test_a_missing_file_is_said_to_be_missing(source: str) -> None:
    assert "there is no file" in refusal(source)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ndef f(:\n", ["line 2", "Python cannot read the file"]),
        ("import surely_not_installed.part\n", ["surely_not_installed", "pip install surely_not_installed"]),
        ("import sys; sys.exit(3)\n", ["__main__"]),
        ("x = 1\ny = 1 / 0\n", ["line 2", "ZeroDivisionError: division by zero"]),
        ("import penstock\n@penstock.model\ndef f(x: int, y: int) -> int: return x\n", ["exactly one argument"]),
        ("import penstock\nclass Lazy(penstock.Handler): pass\n", ["Lazy has no inference"]),
        (
            NO_START.format("open('/no/weights')"),
            ["A could not be loaded on cpu", "FileNotFoundError"],
        ),
        # Regression: the message was "the process was killed: it closed its connection and lived on" or "exited with code 1".
        (
            NO_START.format("raise SystemExit('no weights')"),
            ["A.initialize ended the process", "sys.exit('no weights')", "raise an error"],
        ),
        (
            NO_START.format("raise ModuleNotFoundError(name='cv2')"),
            ["A.initialize", "pip install opencv-python-headless"],
        ),
    ],
)
def test_what_keeps_a_model_from_loading_is_told_with_the_way_out(tmp_path: Path, text: str, words: list[str]) -> None:
    message = refusal(written(tmp_path, text))
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(("declared", "asked"), [("None", None), ("32", 8), ("8", None)])
def test_a_bucket_that_no_batch_can_fill_is_refused_whoever_says_how_large_batches_are(
    tmp_path: Path, declared: str, asked: int | None
) -> None:
    source = written(tmp_path, f"import penstock\nclass A(penstock.Handler):\n    max_batch_size = {declared}\n{SAME}")
    with pytest.raises(HandlerLoadError, match=r"batch_buckets \[1, 32\] go beyond max_batch_size = 8: no batch is larger"):
        load(source, "mine", runtime=RuntimeOptions(batch_buckets=(1, 32)), max_batch_size=asked)


def test_a_handler_may_not_declare_batches_larger_than_the_store_takes(tmp_path: Path) -> None:
    source = written(tmp_path, f"import penstock\nclass A(penstock.Handler):\n    max_batch_size = 4000\n{SAME}")
    with pytest.raises(HandlerLoadError, match="max_batch_size = 4000 is not between 1 and 1024"):
        load(source, "mine")


def test_a_bucket_as_large_as_the_batches_that_the_code_declares_is_taken(tmp_path: Path) -> None:
    source = written(tmp_path, f"import penstock\nclass A(penstock.Handler):\n    max_batch_size = 32\n{SAME}")
    assert load(source, "mine", runtime=RuntimeOptions(batch_buckets=(1, 32))).context.max_batch_size == 32


def test_a_penstock_error_of_the_model_passes_unchanged(tmp_path: Path) -> None:
    source = written(
        tmp_path,
        """
        from penstock import Handler
        from penstock.errors import HandlerLoadError
        class Mine(Handler):
            def initialize(self, context): raise HandlerLoadError("put the weights there")
            def inference(self, batch): return batch
        """,
    )
    assert refusal(source) == "put the weights there"


def test_importing_the_records_of_a_model_leaves_the_decorator_in_place() -> None:
    """Regression: the import of a module `penstock.model` replaced the decorator of that name in user files."""
    import penstock
    from penstock.model_spec import ModelSpec

    assert ModelSpec.__module__ == "penstock.model_spec"
    assert callable(penstock.model)
