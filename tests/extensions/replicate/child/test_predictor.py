"""Predictors as Cog's documentation writes them, loaded and run like any handler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import orjson
import pytest

from penstock.errors import HandlerLoadError
from penstock.extension import lent_modules
from penstock.handlers.contract import Failure
from penstock.handlers.load import import_model, load
from penstock.handlers.loaded import Loaded
from penstock.outputs.media import Media
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import Failed, Item, Output

HELLO = """
    from cog import BasePredictor, Input, Path
    class Predictor(BasePredictor):
        def setup(self):
            self.prefix = "hello"
        def predict(
            self,
            text: str = Input(description="Whom to greet", min_length=1, regex="^[a-z]*$"),
            times: int = Input(default=1, ge=1, le=3),
            mood: str = Input(default="plain", choices=["plain", "loud"]),
            note: str = Input(default=None),
        ) -> str:
            said = " ".join([self.prefix + " " + text] * times)
            return said.upper() if mood == "loud" else said
"""
FILES = """
    import tempfile
    from cog import BasePredictor, BaseModel, File, Input, Path, Secret
    class Output(BaseModel):
        size: int
        picture: Path
        missing: Path | None = None
    class Predictor(BasePredictor):
        def setup(self, weights=None):
            assert weights is None
        def predict(self, image: Path, more: list[Path] = Input(default=[]), raw: File = None, key: Secret = None) -> Output:
            assert image.exists() and image.suffix == ".png", image
            self.seen = image
            assert raw is None or raw.read() == b"raw"
            assert key is None or ("secret" not in str(key) and key.get_secret_value() == "secret")
            out = Path(tempfile.mkdtemp()) / "out.png"
            out.write_bytes(image.read_bytes() + b"".join(path.read_bytes() for path in more))
            return Output(size=len(out.read_bytes()), picture=out)
"""
STREAM = """
    from cog import BasePredictor, ConcatenateIterator, Path
    class Predictor(BasePredictor):
        def predict(self, n: int, fail: bool = False) -> ConcatenateIterator[str]:
            for place in range(n):
                yield str(place)
            if fail:
                raise ValueError("no more")
"""


@pytest.fixture(autouse=True)
def _import_state_restored() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("penstock_model_") or name == "cog":
            del sys.modules[name]


def written(folder: Path, text: str, name: str = "predict.py") -> str:
    path = folder / name
    path.write_text(dedent(text))
    return str(path)


def loaded(folder: Path, text: str) -> Loaded:
    return load(written(folder, text), "mine", modules=lent_modules())


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(HandlerLoadError) as caught:
        loaded(folder, text)
    return str(caught.value)


def answers(model: Loaded, *inputs: Any) -> list[Any]:
    """The outputs and the codes of failures."""
    items = [Item("application/json", orjson.dumps(given)) for given in inputs]
    found = []
    for outcome in run_batch(model, items).outcomes:
        assert isinstance(outcome, Output | Failed)
        found.append(orjson.loads(outcome.data) if isinstance(outcome, Output) else (outcome.code, outcome.message))
    return found


def test_a_predictor_of_the_documentation_runs_as_it_is(tmp_path: Path) -> None:
    model = loaded(tmp_path, HELLO)
    assert answers(model, {"text": "world"}, {"text": "you", "times": 2, "mood": "loud"}) == [
        "hello world",
        "HELLO YOU HELLO YOU",
    ]
    assert model.attributes.max_batch_size == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "missing required field `text`"),
        ({"text": ""}, "length"),
        ({"text": "A"}, "regex"),
        ({"text": 3}, "/text"),
        ({"text": "a", "times": 4}, "<= 3 at /times"),
        ({"text": "a", "times": 0}, ">= 1 at /times"),
        ({"text": "a", "times": 1.5}, "/times"),
        ({"text": "a", "mood": "sad"}, "/mood"),
        ({"text": "a", "nose": 1}, "nose"),
        (["a"], "object"),
    ],
)
def test_an_input_that_predict_does_not_take_fails_alone_and_says_where(tmp_path: Path, given: Any, said: str) -> None:
    bad, good = answers(loaded(tmp_path, HELLO), given, {"text": "a", "note": None})
    assert bad[0] == "invalid_input"
    assert said in bad[1]
    assert good == "hello a"


def test_the_schema_has_what_input_says_in_the_order_of_the_parameters(tmp_path: Path) -> None:
    schema = loaded(tmp_path, HELLO).input_schema
    assert schema is not None
    [own] = schema["$defs"].values()
    text, times, mood, note = own["properties"].values()
    assert text == {
        "title": "Text",
        "description": "Whom to greet",
        "type": "string",
        "minLength": 1,
        "pattern": "^[a-z]*$",
        "x-order": 0,
    }
    assert (times["minimum"], times["maximum"], times["default"], times["x-order"]) == (1, 3, 1, 1)
    assert (sorted(mood["enum"]), note["default"]) == (["loud", "plain"], None)
    assert (own["required"], own["additionalProperties"]) == (["text"], False)


def test_files_are_paths_that_exist_while_predict_runs(tmp_path: Path) -> None:
    model = loaded(tmp_path, FILES)
    image = "data:image/png;base64,aW1hZ2U="
    items = {"image": image, "more": ["Yg=="], "raw": "cmF3", "key": "secret"}
    [outcome] = run_batch(model, [Item("application/json", orjson.dumps(items))]).outcomes
    assert isinstance(outcome, Output), outcome
    assert outcome.data.endswith(b"imageb")
    assert b'"size":6' in outcome.data
    assert not model.handler.predictor._instance.seen.exists()  # type: ignore[attr-defined]


def test_a_path_alone_is_a_file_and_one_without_a_file_fails_its_item(tmp_path: Path) -> None:
    text = """
        from cog import BasePredictor, Path
        class Predictor(BasePredictor):
            def predict(self, name: str) -> Path:
                return Path(__file__).parent / name
    """
    model = loaded(tmp_path, text)
    (tmp_path / "chart.png").write_bytes(b"png")
    (tmp_path / ".hidden").write_bytes(b"h")
    outputs = model.inference([model.codec.from_value({"name": name}) for name in ("chart.png", ".hidden", "none.png")])
    assert outputs[:2] == [Media(b"png", "image/png", "chart.png"), Media(b"h", "application/octet-stream")]
    assert isinstance(outputs[2], Failure)
    assert "cannot be read as a file" in outputs[2].message


def test_an_iterator_streams_and_its_output_is_the_list_of_chunks(tmp_path: Path) -> None:
    model = loaded(tmp_path, STREAM)
    assert model.streams
    assert model.output_schema == {
        "type": "array",
        "items": {"type": "string"},
        "x-cog-array-type": "iterator",
        "x-cog-array-display": "concatenate",
    }
    good, bad = answers(model, {"n": 3}, {"n": 1, "fail": True})
    assert good == ["0", "1", "2"]
    assert bad == ("handler_error", "ValueError: no more")


def test_files_that_are_yielded_come_with_the_output(tmp_path: Path) -> None:
    text = """
        import io
        from typing import Iterator
        from cog import BasePredictor, Path
        class Predictor(BasePredictor):
            def predict(self) -> Iterator[Path]:
                for name in ("a.txt", "b.txt"):
                    path = Path(__file__).parent / name
                    path.write_text(name)
                    yield path
    """
    model = loaded(tmp_path, text)
    [outputs] = model.inference([model.codec.from_value({})])
    assert outputs == [Media(b"a.txt", "text/plain", "a.txt"), Media(b"b.txt", "text/plain", "b.txt")]


def test_a_coroutine_is_awaited(tmp_path: Path) -> None:
    text = """
        import asyncio
        from cog import BasePredictor
        class Predictor(BasePredictor):
            async def setup(self): self.more = 1
            async def predict(self, n: int) -> int:
                await asyncio.sleep(0)
                return n + self.more
    """
    model = loaded(tmp_path, text)
    assert model.at_once
    assert answers(model, {"n": 1}, {"n": 2}) == [2, 3]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def setup(self): pass", "has no predict method"),
        ("def predict(self, x) -> str: pass", "'x' needs a type"),
        ("def predict(self, **more: str) -> str: pass", "'more' needs a type"),
        ("async def predict(self, x: int) -> int: yield x", "is async and yields"),
        ("def predict(self, x: int = Input(default='a')) -> int: pass", "the default of 'x'"),
        ("def predict(self, x: str = Input(ge=1)) -> int: pass", "Can only set `ge`"),
        ("def predict(self, x: float = Input(choices=[0.5])) -> int: pass", "choices are texts or whole numbers"),
        ("def predict(self, x: str = Input(minimum=1)) -> int: pass", "minimum"),
    ],
)
def test_a_predictor_that_cannot_be_served_is_refused_at_load(tmp_path: Path, body: str, said: str) -> None:
    text = f"""
        from cog import BasePredictor, Input
        class Predictor(BasePredictor):
            {body}
    """
    assert said in refusal(tmp_path, text)


def test_a_name_of_cog_that_is_not_here_is_named(tmp_path: Path) -> None:
    assert "penstock's cog has no emit_metric; it has BaseModel" in refusal(tmp_path, "from cog import emit_metric")


def test_cog_is_ours_for_code_that_imports_it_and_for_nobody_else(tmp_path: Path) -> None:
    plain = written(tmp_path, "import penstock\n@penstock.model\ndef f(x: int): return x\n", "plain.py")
    import_model(plain, modules=lent_modules())
    assert "cog" not in sys.modules
    assert not any(type(finder).__name__ == "_LentFinder" for finder in sys.meta_path)
    import_model(written(tmp_path, HELLO), modules=lent_modules())
    assert "cog" in sys.modules
    del sys.modules["cog"]
    written(tmp_path, "mine = True\n", "cog.py")
    assert "cannot import name 'BasePredictor'" in refusal(tmp_path, HELLO)
