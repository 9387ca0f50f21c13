"""The stack of compose/compose.yaml under a project name of its own, driven by the real `docker compose`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILES = (ROOT / "compose" / "compose.yaml", ROOT / "compose" / "compose.gpu.yaml")
EXTRA = Path(__file__).parent / "compose.test.yaml"
GPU_EXTRA = Path(__file__).parent / "compose.gpu.test.yaml"
ENGINE = shlex.split(os.environ.get("DOCKER", "docker"))
COMPOSE = shlex.split(os.environ.get("COMPOSE") or f"{os.environ.get('DOCKER', 'docker')} compose")
# If containers cannot reach a package registry through the engine's network, set DOCKER_BUILD_ARGS="--network=host".
BUILD_ARGS = shlex.split(os.environ.get("DOCKER_BUILD_ARGS", ""))
_LOG_LINES = "60"


class Refused(AssertionError):
    """A command of the engine failed; the message contains the output of the command."""


def run(argv: Sequence[str], *, env: dict[str, str] | None = None, stdin: str | None = None, timeout_s: float = 300.0) -> str:
    """The standard output of a command. An exit code other than 0 raises `Refused` with all output."""
    done = subprocess.run(
        argv,
        # Variables for another penstock of this user must not reach this stack; variables for the engine must.
        env={**{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}, **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        raise Refused(f"{shlex.join(argv)} ended with {done.returncode}\n{done.stdout[-4_000:]}\n{done.stderr[-4_000:]}")
    return done.stdout


def docker(*words: str, stdin: str | None = None, timeout_s: float = 300.0) -> str:
    return run([*ENGINE, *words], stdin=stdin, timeout_s=timeout_s)


def missing_tool() -> str:
    """The reason why the tests cannot run here, "" if they can."""
    if shutil.which(ENGINE[0]) is None:
        return f"{ENGINE[0]} is not installed; `make compose-test` needs Docker with Compose (variables DOCKER, COMPOSE)"
    for argv in ([*ENGINE, "version"], [*COMPOSE, "version"]):
        try:
            run(argv, timeout_s=30)
        except Refused as refusal:
            return f"`make compose-test` needs a running Docker engine and its Compose plugin: {refusal}"
    return ""


@dataclass(slots=True)
class Stack:
    """One Compose project with its containers. `secrets` is the folder that the service `setup` fills."""

    project: str
    port: int
    secrets: Path
    profiles: dict[str, int]
    tag: str = ""
    files: tuple[Path, ...] = (FILES[0], EXTRA)
    key: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        ports = {f"PENSTOCK_{name.upper()}_PORT": str(port) for name, port in self.profiles.items()}
        tag = {"PENSTOCK_TAG": self.tag} if self.tag else {}
        return {"PENSTOCK_PORT": str(self.port), "PENSTOCK_SECRETS_DIR": str(self.secrets), **ports, **tag}

    def compose(self, *words: str, timeout_s: float = 300.0) -> str:
        files = ["--env-file", os.devnull, *(word for file in self.files for word in ("-f", str(file)))]
        return run([*COMPOSE, "-p", self.project, *files, *words], env=self.env, timeout_s=timeout_s)

    def up(self, *words: str) -> None:
        try:
            self.compose("up", "-d", "--wait", "--no-build", *words)
        except Refused as refusal:
            raise Refused(f"{refusal}\n{self.logs()}") from None

    def logs(self) -> str:
        return self.compose("logs", "--tail", _LOG_LINES, "--no-color")

    def down(self) -> None:
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "10")

    def containers(self, service: str = "") -> list[dict[str, Any]]:
        """The running containers of one service or of all services, as `docker inspect` describes them."""
        ids = self.compose("ps", "-q", *([service] if service else [])).split()
        found: list[dict[str, Any]] = json.loads(docker("inspect", *ids)) if ids else []
        return found

    def by_service(self) -> dict[str, dict[str, Any]]:
        """One running container of each service, by the name of the service."""
        return {found["Config"]["Labels"]["com.docker.compose.service"]: found for found in self.containers()}

    def inside(self, container: str, *words: str) -> str:
        return docker("exec", container, *words)

    def scale(self, workers: int) -> None:
        self.up("--no-recreate", "--scale", f"worker={workers}")
