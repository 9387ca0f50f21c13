"""The variables with which the comparison starts a server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from functions import Function, function_of

NAME = os.environ["PEER_NAME"]
WORKLOAD = os.environ["PEER_WORKLOAD"]
# Whether the body of a request is the input itself, not JSON.
RAW = bool(os.environ["PEER_RAW"])
BATCH = int(os.environ["PEER_BATCH"])
WAIT_MS = int(os.environ["PEER_WAIT_MS"])
PORT = int(os.environ["PEER_PORT"])
# Files of the embedding model; written by the comparison's `setup`.
MODEL_FOLDER = Path(os.environ["PEER_MODEL"])
# A folder for this start only, with a path short enough for sockets.
SCRATCH = Path(os.environ["PEER_SCRATCH"])
HERE = Path(sys.argv[0]).resolve().parent
# The folder of the environment's commands.
BIN = Path(sys.executable).parent


def load_function() -> Function:
    return function_of(WORKLOAD, MODEL_FOLDER)
