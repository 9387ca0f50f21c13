"""Cog's predictors in a real worker behind a gateway, for the tests of the protocols that call them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from tests.acceptance.gateway_process import GatewayClient
from tests.eventually import eventually
from tests.stack import Stack

PREDICTORS = {
    "hello": """
        from cog import BasePredictor, Input
        class Predictor(BasePredictor):
            def setup(self):
                self.prefix = "hello"
            def predict(self, text: str = Input(description="Whom to greet"), times: int = Input(default=1, ge=1, le=3)) -> str:
                if text == "trouble":
                    raise ValueError("no greeting for trouble")
                return " ".join([f"{self.prefix} {text}"] * times)
    """,
    "files": """
        from cog import BasePredictor, BaseModel, Path
        class Output(BaseModel):
            size: int
            small: Path
            large: Path
        class Predictor(BasePredictor):
            def predict(self, image: Path, grow: int = 0) -> Output:
                data, here = image.read_bytes(), Path(__file__).parent
                for name, content in (("small.txt", data), ("large.bin", data + bytes(grow))):
                    (here / name).write_bytes(content)
                return Output(size=len(data), small=here / "small.txt", large=here / "large.bin")
    """,
    "teller": """
        import time
        from pathlib import Path as LocalPath
        from cog import BasePredictor, ConcatenateIterator
        class Predictor(BasePredictor):
            def predict(self, n: int, gate: str = "", fail: bool = False) -> ConcatenateIterator[str]:
                for place in range(n):
                    yield f"line {place}\\n"
                while gate and not LocalPath(gate).exists():
                    time.sleep(0.01)
                if fail:
                    raise ValueError("no more")
                yield "end"
    """,
}


@contextmanager
def predictors_served(redis_url: str, folder: Path) -> Iterator[GatewayClient]:
    """The predictors, and `absent`, a model that no worker has."""
    models = {}
    for name, text in PREDICTORS.items():
        (folder / name).mkdir()
        (folder / name / "predict.py").write_text(dedent(text))
        models[name] = {"source": str(folder / name / "predict.py")}
    with Stack(folder, models, store=redis_url) as stack:
        stack.start_worker().await_ready()
        client = stack.start_gateway(models={**models, "absent": models["hello"]})
        eventually(lambda: all(client.get(f"/v1/models/{name}").json()["ready"] for name in models), timeout_s=60.0)
        yield client
