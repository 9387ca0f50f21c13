"""The list of all doors."""

from __future__ import annotations

import importlib
import os

from tests.doors.door import Door, Doors
from tests.doors.door_celery import CeleryDoor
from tests.doors.door_jobs import JobsBatchDoor, JobsDoor, ReplayDoor
from tests.doors.door_oip import OipDoor
from tests.doors.door_openai import EmbeddingsDoor
from tests.doors.door_predictions import ExplanationsDoor, PredictionsDoor, StreamDoor
from tests.doors.door_replicate import CogDoor, CogPutDoor, ReplicateDoor, ReplicateModelDoor
from tests.doors.door_torchserve import TorchServeDoor
from tests.doors.grpc_door import OipGrpcDoor, TorchServeGrpcDoor

# Doors of an extension outside the tree, in place of ours: `module:NAME` of a door class, separated by commas.
VARIABLE = "PENSTOCK_TEST_DOORS"
_OURS = (
    JobsDoor,
    JobsBatchDoor,
    ReplayDoor,
    PredictionsDoor,
    ExplanationsDoor,
    StreamDoor,
    EmbeddingsDoor,
    OipDoor,
    OipGrpcDoor,
    ReplicateDoor,
    ReplicateModelDoor,
    CogDoor,
    CogPutDoor,
    TorchServeDoor,
    TorchServeGrpcDoor,
    CeleryDoor,
)


def doors_named(text: str) -> list[Door]:
    """The doors of an extension, as the variable names them."""
    named = [name.partition(":") for name in text.split(",") if name]
    return [getattr(importlib.import_module(module), name)() for module, _, name in named]


DOORS = Doors(doors_named(os.environ.get(VARIABLE, "")) or [kind() for kind in _OURS])
