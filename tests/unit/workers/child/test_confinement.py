"""What Landlock takes from a process and what it leaves, tried in real processes, which cannot get the right back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.workers.child import confinement

LANDLOCK = confinement._Kernel().call(444, None, 0, 1) >= 2
needs_landlock = pytest.mark.skipif(not LANDLOCK, reason="this kernel has no Landlock of version 2 or later")


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "secrets"
    folder.mkdir(parents=True)
    (folder / "worker_url").write_text("redis://worker:secret@store")
    (tmp_path / "run" / "lock").write_text("beside")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("weights")
    return folder


def confined(secrets: Path, program: str) -> str:
    """Run `program` in a process that has hidden `secrets`, and return the words that it prints."""
    begin = (
        "import os, subprocess, sys, pathlib\n"
        "from penstock.workers.child.confinement import hide\n"
        f"assert hide(pathlib.Path({str(secrets)!r}))\n"
        f"os.chdir({str(secrets.parents[1])!r})\n"
        "def tries(path):\n"
        "    try: return open(path).read()\n"
        "    except PermissionError: return 'refused'\n"
    )
    done = subprocess.run([sys.executable, "-c", begin + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_landlock
def test_a_secret_cannot_be_read_by_the_process_or_by_what_it_starts(secrets: Path) -> None:
    program = (
        "print(tries('run/secrets/worker_url'))\n"
        "again = subprocess.run(['cat', 'run/secrets/worker_url'], capture_output=True, text=True)\n"
        "print('started:', again.returncode, again.stdout)\n"
        "os.symlink(os.path.abspath('run/secrets/worker_url'), 'model/way-round')\n"
        "print(tries('model/way-round'))"
    )
    assert confined(secrets, program).splitlines() == ["refused", "started: 1 ", "refused"]


# Both processes give up their capabilities first, as they have none in a container; root may read everything otherwise.
WITHOUT_CAPABILITIES = (
    "import ctypes, struct; assert ctypes.CDLL(None).capset(struct.pack('=Ii', 0x20080522, 0), bytes(24)) == 0\n"
)


@pytest.fixture
def supervisor() -> Iterator[int]:
    program = f"{WITHOUT_CAPABILITIES}print('up', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"up\n"
        yield started.pid
        started.kill()


@needs_landlock
def test_the_environment_of_another_process_of_its_user_cannot_be_read(secrets: Path, supervisor: int) -> None:
    asked = f"{WITHOUT_CAPABILITIES}print(len(open('/proc/{supervisor}/environ').read()))"
    before = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert int(before.stdout) > 0, "without Landlock it can be read"
    assert confined(secrets, f"{WITHOUT_CAPABILITIES}print(tries('/proc/{supervisor}/environ'))") == "refused"


@needs_landlock
def test_everything_else_stays_readable_writable_and_movable(secrets: Path) -> None:
    program = (
        "print(tries('model/weights'), tries('run/lock'))\n"
        "open('model/new', 'w').write('new'); os.makedirs('model/inside')\n"
        "os.rename('model/new', 'model/inside/moved'); print(tries('model/inside/moved'))\n"
        "import tempfile; file = tempfile.NamedTemporaryFile('w+'); file.write('x'); file.flush(); print(tries(file.name))\n"
        "print(len(open('/dev/urandom', 'rb').read(4)), bool(open('/proc/self/status').read()))"
    )
    assert confined(secrets, program).splitlines() == ["weights beside", "new", "x", "4 True"]


def test_without_such_a_folder_nothing_changes(tmp_path: Path) -> None:
    assert confinement.hide(tmp_path / "absent")
