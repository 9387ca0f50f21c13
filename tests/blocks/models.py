"""Small models under the names that pages use: hidden commands of pages serve them, `penstock up classify=$MODELS:classify`."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass

from PIL import Image as Pictures

import penstock
from penstock import Context, Failure, Handler, Image, Media


@dataclass
class Picture:
    image: Image
    threshold: float = 0.5


@penstock.model
def classify(item: bytes) -> dict[str, float]:
    return {"cat": 0.9, "dog": 0.1}


@penstock.model
def detect(item: Picture) -> list[dict[str, float]]:
    return [{"x": 1.0, "score": 0.9}] if item.threshold < 0.9 else []


@penstock.model
def score(item: dict[str, float]) -> float:
    return sum(item.values())


@penstock.model
def echo(item: str) -> str:
    return item


@penstock.model
def blur(item: bytes) -> Media:
    return Media(item, "image/jpeg", filename="small.jpg")


@penstock.model
def draw(prompt: str) -> Media:
    made = io.BytesIO()
    Pictures.new("RGB", (8, 8), "white").save(made, "png")
    return Media(made.getvalue(), "image/png")


@penstock.model
def embed(text: str) -> list[float]:
    return [float(len(text)), 1.0]


class Slow(Handler):
    """Two tenths of a second for each job, one after another."""

    max_batch_size = 1

    def inference(self, batch: list[dict[str, int]]) -> list[dict[str, int]]:
        time.sleep(0.2)
        return [{"y": item["x"] ** 2} for item in batch]


class Flaky(Handler):
    """Fails for 12 and 13, in two ways."""

    def initialize(self, context: Context) -> None:
        self.wrong = {12: Failure("the picture has no pixels"), 13: Failure("the file is no JPEG picture", "not_a_jpeg")}

    def inference(self, batch: list[dict[str, int]]) -> list[dict[str, int] | Failure]:
        return [self.wrong.get(item["x"], {"y": item["x"]}) for item in batch]
