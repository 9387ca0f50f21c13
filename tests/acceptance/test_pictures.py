"""`make pictures` makes every picture that is made without a measurement of minutes, from real stacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.images.catalogue import DRAWN, PHOTOGRAPHED, RECORDED
from tests.acceptance.browser import find_browser
from tests.markdown import ROOT
from tests.monitoring.prometheus import program

# A search of `penstock tune` takes a minute, and so do histories worth a picture; all have tests of their own.
LONG = ("tune.svg", "dashboard-history.png", "dashboard-model.png")


@pytest.mark.usefixtures("has_server")
def test_every_picture_is_made(tmp_path: Path) -> None:
    find_browser()
    program("prometheus")
    command = [
        sys.executable,
        "-m",
        "docs.images",
        "--out",
        str(tmp_path),
        "--processes",
        "4",
        *(f"--skip={name}" for name in LONG),
    ]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    for name in (*DRAWN, *(name for name in RECORDED if not name.endswith(LONG))):
        assert ElementTree.parse(tmp_path / name).getroot().tag.endswith("svg"), name
    for name in (name for name in PHOTOGRAPHED if not name.endswith(LONG)):
        picture = (tmp_path / name).read_bytes()
        assert picture.startswith(b"\x89PNG"), name
        # A page without content would be a few hundred bytes of white.
        assert len(picture) > 4_000, name
