"""Archives whose handler is a built-in one, or imports what is not installed, in the child's runner."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.worker.archives import LOADER
from penstock.handlers.load import load
from penstock.workers.ipc.frames import Output
from tests.extensions.torchserve.child.archives import item, loaded, outcomes, write_archive

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def archive(folder: Path, handler: str, **model: Any) -> Path:
    """An archive without a file of its own."""
    written = write_archive(folder, "", handler=handler, **model)
    (written / "handler.py").unlink()
    return written


def answers(found: list[Any]) -> list[Any]:
    assert all(isinstance(one, Output) for one in found), found
    return [json.loads(one.data) for one in found]


def test_an_image_classifier_needs_no_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the handler runs a torch model: pip install 'penstock-inference[torch]'")
    image_module = pytest.importorskip("PIL.Image", reason="images need pillow: pip install 'penstock-inference[images]'")

    class Colours(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, x):  # type: ignore[no-untyped-def]
            return x.mean((2, 3)) * 3

    buffer = io.BytesIO()
    image_module.new("RGB", (300, 260), (0, 255, 0)).save(buffer, "PNG")
    folder = archive(tmp_path, "image_classifier", serializedFile="colours.pt")
    torch.jit.script(Colours()).save(folder / "colours.pt")
    (folder / "index_to_name.json").write_text('{"0": "red", "1": "green", "2": "blue"}')
    model = load(str(folder), "mine", loader=LOADER)
    rows = [
        item(buffer.getvalue(), "image/png"),
        item(buffer.getvalue(), "application/octet-stream"),
        item(b64encode(buffer.getvalue()), "text/plain"),
    ]
    first, *others = answers(outcomes(model, *rows))
    assert list(first) == ["green", "blue", "red"]
    assert others == [first, first]
    (explained,) = answers(outcomes(model, item(buffer.getvalue(), "image/png", {"explain": "True"})))
    assert (len(explained), len(explained[0]), len(explained[0][0])) == (3, 224, 224)


def test_a_base_handler_needs_no_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the handler runs a torch model: pip install 'penstock-inference[torch]'")
    folder = archive(tmp_path, "base_handler", serializedFile="double.pt")
    torch.jit.script(torch.nn.Identity()).save(folder / "double.pt")
    assert load(str(folder), "mine", loader=LOADER).info().description.endswith("handler BaseHandler.")


@pytest.mark.parametrize(("name", "package"), [("torchvision", "torchvision"), ("transformers", "transformers")])
def test_a_library_of_the_archives_own_is_named_with_how_to_install_it(name: str, package: str, tmp_path: Path) -> None:
    code = (
        f"from ts.torch_handler.vision_handler import VisionHandler\nfrom {name} import transforms\nclass A(VisionHandler): ..."
    )
    with pytest.raises(
        HandlerLoadError, match=rf"needs the module '{name}', which is not installed; run: pip install {package}"
    ):
        loaded(tmp_path, code)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from ts.torch_handler.vllm_handler import VLLMHandler", "scheduling by tokens belongs to an engine"),
        ("from ts.utils.util import load_nothing", "no load_nothing; it has"),
    ],
)
def test_a_name_that_ts_does_not_have_is_told_with_the_line(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(HandlerLoadError, match=rf"handler\.py, line 1: ImportError: .*{said}"):
        loaded(tmp_path, f"{line}\nclass A: ...")


def test_a_metrics_file_that_is_wrong_is_told_at_load(tmp_path: Path) -> None:
    options = {"metrics": {"counter": [{"unit": "ms"}]}}
    with pytest.raises(HandlerLoadError, match=r"model_metrics\.counter has an entry without name"):
        loaded(tmp_path, "def handle(data, context): return data", options=options)
