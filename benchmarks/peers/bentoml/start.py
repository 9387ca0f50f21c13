"""Runs `bentoml serve` on the service beside this file."""

from __future__ import annotations

import os

import launch

command = [str(launch.BIN / "bentoml"), "serve", "service:Peer", "--host", "127.0.0.1", "--port", str(launch.PORT)]
own = {"BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": str(launch.SCRATCH / "bentoml")}
os.execve(command[0], [*command, "--working-dir", str(launch.HERE)], {**os.environ, **own})
