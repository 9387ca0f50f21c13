"""Models for tests of pipelines. Each notes what it runs in a file, so that a test sees a stage that ran twice."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import Failure, Handler, Media

Value = dict[str, Any]


def _note(kind: str, value: Any) -> None:
    """Append one line: which stage ran, and the tag of the pipeline's job."""
    if isinstance(value, dict) and (notes := value.get("notes")):
        with Path(notes).open("a") as file:
            file.write(f"{kind} {value.get('tag', '')}\n")


def _await_gate(value: Any) -> None:
    gate = value.get("until") if isinstance(value, dict) else None
    while gate and not Path(gate).exists():
        time.sleep(0.005)


class Add(Handler):
    """Adds one to `n`. Held while the gate `until` is closed; `fail` names the stage that fails, `kill` the one that dies."""

    def initialize(self, context: Any) -> None:
        self.name = str(context.model)

    def inference(self, batch: list[Any]) -> list[Any]:
        return [self._one(value) for value in batch]

    def _one(self, value: Any) -> Any:
        _note(self.name, value)
        if value.get("hold", self.name) == self.name:
            _await_gate(value)
        if value.get("fail") == self.name:
            return Failure(f"{self.name} was told to fail", "told_to")
        if value.get("kill") == self.name and not Path(value["once"]).exists():
            Path(value["once"]).touch()
            os._exit(9)
        return {**value, "n": value.get("n", 0) + 1, "trail": [*value.get("trail", []), self.name]}


@dataclass
class Number:
    n: int


class Exact(Handler):
    """Takes an object with a number."""

    def inference(self, batch: list[Number]) -> list[dict[str, int]]:
        return [{"n": item.n} for item in batch]


class Join(Handler):
    """Answers with what it got, so that a test sees how branches were joined."""

    def inference(self, batch: list[Any]) -> list[Any]:
        return [{"got": value} for value in batch]


class Grow(Handler):
    """Answers with so many bytes as it is asked for, as a file."""

    def inference(self, batch: list[Any]) -> list[Any]:
        return [Media(bytes([value.get("byte", 7)]) * int(value["bytes"]), "application/x-block") for value in batch]


class Measure(Handler):
    """Takes bytes, and answers how many they are."""

    accepts = ("*/*",)

    def inference(self, batch: list[Any]) -> list[Any]:
        return [{"bytes": len(value), "first": value[0] if value else None} for value in batch]
