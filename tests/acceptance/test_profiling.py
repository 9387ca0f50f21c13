"""Profiles of batches, on demand and at regular intervals: real children, each with the profiler of its runtime."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.client.sync import Client
from tests.acceptance.test_cli import SQUARE, clean_environment
from tests.command import called_here
from tests.eventually import eventually
from tests.stack import Stack

pytest.importorskip("onnxruntime")

DIGITS = SQUARE.parent / "digits"
IMAGE = next(iter(sorted((DIGITS / "images").glob("*.png"))))
STAGES = {"queue", "batch_wait", "decode", "preprocess", "device_wait", "inference", "postprocess", "settle"}
TORCH_HANDLER = """
import penstock
import torch


class Product(penstock.Handler):
    def inference(self, batch: list) -> list:
        return [(torch.ones(4, 4) @ torch.full((4, 4), float(value))).sum().item() for value in batch]
"""
# This handler sets an attribute `runtime` of its own, in which `profile` is a text and not a method.
OWN_RUNTIME = """
import types

import penstock


class Own(penstock.Handler):
    def initialize(self, context: penstock.Context) -> None:
        self.runtime = types.SimpleNamespace(profile="fast")

    def inference(self, batch: list) -> list:
        return [value + 1 for value in batch]
"""


@dataclass(frozen=True)
class Profiled:
    """A gateway and a worker, which records into `state/profiles`."""

    url: str
    folder: Path

    def here(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return called_here(*arguments, cwd=self.folder, env=clean_environment() | {"PENSTOCK_URL": self.url})


@pytest.fixture(scope="module")
def up(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Profiled]:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "product.py").write_text(TORCH_HANDLER)
    (folder / "own.py").write_text(OWN_RUNTIME)
    models = {
        "digits": {"source": f"{DIGITS / 'handler.py'}:Digits", "slots": 2},
        "product": {"source": str(folder / "product.py")},
        "own": {"source": str(folder / "own.py")},
        "square": {"source": str(SQUARE), "profile": True},
    }
    with Stack(folder, models, store=redis_url) as stack:
        stack.start_worker(beat_s=0.3)
        stack.start_gateway()
        stack.await_ready()
        yield Profiled(stack.url, folder)


def _recorded(up: Profiled, *arguments: str) -> dict[str, Any]:
    done = up.here("call", "--profile", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    found: dict[str, Any] = body["profile"]
    assert found["batch"] == body["job"]["batch"]["id"]
    assert found["stages_s"].keys() == STAGES
    assert found["stages_s"]["inference"] == pytest.approx(body["job"]["batch"]["inference_s"], abs=1e-5)
    return found


def test_a_call_is_recorded_by_onnx_runtime_whichever_slot_takes_it(up: Profiled) -> None:
    found = _recorded(up, "digits", f"@{IMAGE}")
    folder = Path(found["folder"])
    assert (found["kind"], found["note"], folder.parent) == ("onnxruntime", None, up.folder / "state" / "profiles" / "digits-1")
    names = {event["name"] for event in json.loads((folder / "trace.json").read_text())}
    assert "model_run" in names
    assert {path.name for path in folder.iterdir()} == {
        "batch.json",
        "operators.txt",
        "stages.json",
        "stages.txt",
        "trace.json",
    }


def test_a_call_is_recorded_by_torch(up: Profiled) -> None:
    found = _recorded(up, "product", "2")
    assert (found["kind"], found["note"]) == ("torch", None)
    trace = json.loads((Path(found["folder"]) / "trace.json").read_text())
    assert any(event.get("name") == "aten::mm" for event in trace["traceEvents"])


def test_a_person_sees_the_stages_and_where_the_recording_lies_beside_the_output(up: Profiled) -> None:
    done = up.here("call", "--profile", "square", '{"x": 4}')
    assert (done.returncode, done.stdout) == (0, '{"y": 16}\n')
    told = {line.split()[0]: line for line in done.stderr.splitlines()}
    assert told.keys() >= STAGES
    folder = Path(told["python"].rpartition(" ")[2])
    assert "inference" in (folder / "profile.txt").read_text()


def recorded(root: Path) -> set[Path]:
    """The folders of the finished recordings."""
    return {path.parent for path in root.glob("*/stages.txt")}


def test_a_handler_whose_own_runtime_has_a_profile_of_its_own_is_recorded_like_any_other(up: Profiled) -> None:
    """The handler's own attribute is not called as if it were penstock's profiler.

    The worker once called the attribute: the child died of the call twice, and the job ended as a suspect.
    """
    found = _recorded(up, "own", "1")
    assert (found["kind"], found["note"]) == ("python", None)


def test_one_batch_of_so_many_is_recorded_where_the_settings_say_so(up: Profiled) -> None:
    root = up.folder / "state" / "profiles" / "square-1"
    before = recorded(root)
    with Client(up.url) as client:
        for value in range(201):
            assert client.predict("square", {"x": value}) == {"y": value * value}
    # A recording is written after the answers of its batch have been sent.
    eventually(lambda: len(recorded(root) - before) >= 2)
    made = list(recorded(root) - before)
    assert len(made) in (2, 3)
    assert {"profile.txt", "stages.json"} <= {path.name for path in made[0].iterdir()}


def test_what_was_asked_for_can_be_read_again_and_unknown_models_are_refused(up: Profiled) -> None:
    done = up.here("call", "--profile", "nobody", "1")
    assert done.returncode == 5
    assert "no model is named 'nobody'" in done.stderr
    done = up.here("call", "--profile", "--async", "square", "1")
    assert done.returncode == 2
