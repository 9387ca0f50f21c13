"""The cache of unpacked archives: one process unpacks for many, and a killed one leaves nothing that another would use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.archives.opening import opened
from penstock.extensions.torchserve.worker.packages import PackageOrder, installed
from penstock.model_cache.entries import Entries
from tests import archives
from tests.eventually import eventually

OPEN = """
import sys
from pathlib import Path
from penstock.extensions.torchserve.archives.opening import opened
print(opened(Path(sys.argv[1]), Path(sys.argv[2])).folder, flush=True)
"""
MANY = {f"part-{number:04}": os.urandom(2048) for number in range(500)}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archives.tgz(tmp_path_factory.mktemp("store") / "large.tar.gz", archives.files(extra=MANY))


def opening(path: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", OPEN, str(path), str(cache)], stdout=subprocess.PIPE, text=True)


def test_a_process_that_is_killed_while_it_unpacks_leaves_nothing_that_the_next_one_takes_for_whole(
    large: Path, tmp_path: Path
) -> None:
    killed = opening(large, tmp_path)
    eventually(lambda: list(tmp_path.glob("*.partial/files/noop/part-*")))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not any(entry.is_whole for entry in Entries(tmp_path).all())
    found = opened(large, tmp_path)
    assert len(list(found.folder.glob("part-*"))) == len(MANY)
    assert [entry.is_whole for entry in Entries(tmp_path).all()] == [True]


def test_one_of_several_processes_unpacks_and_all_use_the_same_folder(large: Path, tmp_path: Path) -> None:
    several = [opening(large, tmp_path) for _ in range(3)]
    said = {one.communicate()[0].strip() for one in several}
    assert said == {str(opened(large, tmp_path).folder)}
    assert len(Entries(tmp_path).all()) == 1


def test_what_is_in_use_stays_when_another_archive_needs_the_room(tmp_path: Path) -> None:
    first = opened(
        archives.mar(tmp_path / "a.mar", archives.files(extra={"w": os.urandom(6000)})), tmp_path / "c", max_bytes=8000
    )
    other = archives.mar(tmp_path / "b.mar", archives.files(extra={"w": os.urandom(6001)}))
    with pytest.raises(Exception, match="what is in use of the models' cache leaves less"):
        opened(other, tmp_path / "c", max_bytes=8000)
    assert first.lock is not None
    first.lock.close()
    opened(other, tmp_path / "c", max_bytes=8000)
    assert not first.folder.exists()


def test_the_archive_holds_what_the_stock_archiver_packs(tmp_path: Path) -> None:
    """In every format that `torch-model-archiver` writes."""
    (tmp_path / "serve.py").write_text(archives.HANDLER)
    (tmp_path / "labels.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("batchSize: 4\n")
    for form, name in {"default": "noop.mar", "zip-store": "noop.mar", "tgz": "noop.tar.gz", "no-archive": "noop"}.items():
        out = tmp_path / form
        out.mkdir()
        about = ("--model-name", "noop", "--version", "2.0", "--handler", "serve.py", "--archive-format", form)
        archives.packed(out, *about, "--extra-files", "labels.json", "--config-file", "config.yaml", folder=tmp_path)
        found = opened(out / name, tmp_path / "cache")
        assert (found.manifest.name, found.manifest.version, found.config) == ("noop", "2.0", {"batchSize": 4})
        assert {"serve.py", "labels.json", "config.yaml"} <= {file.name for file in found.folder.iterdir()}


def test_packages_are_installed_once_beside_the_workers_own_and_reach_nobody_else(tmp_path: Path) -> None:
    path = archives.mar(tmp_path / "noop.mar", archives.with_package())
    cache, said = Entries(tmp_path / "cache"), list[str]()
    found = opened(path, tmp_path / "cache")
    order = PackageOrder("noop", found.folder / "requirements.txt", found.digest, said.append)
    packages, lock = installed(order, cache)
    assert (packages / "only_here.py").read_text() == "VALUE = 7\n"
    assert any("Successfully installed" in line for line in said)
    again, _ = installed(replace(order, on_line=pytest.fail), cache)
    assert again == packages
    seen = subprocess.run(
        [sys.executable, "-c", "import only_here, msgspec; print(only_here.VALUE)"],
        check=False,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )
    assert seen.stdout == "7\n", seen.stderr
    lock.close()


def test_packages_that_cannot_be_had_are_pips_own_words(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("--no-index\nno-such-package-anywhere\n")
    order = PackageOrder("noop", tmp_path / "requirements.txt", "", lambda line: None)
    with pytest.raises(HandlerLoadError) as refused:
        installed(order, Entries(tmp_path / "cache"))
    assert refused.value.message.startswith("Custom pip package installation failed for model noop: pip ended with exit code 1")
    assert "No matching distribution found for no-such-package-anywhere" in refused.value.message
    assert Entries(tmp_path / "cache").all() == []


def test_pip_is_ended_when_it_takes_too_long(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("")
    order = PackageOrder("noop", tmp_path / "requirements.txt", "", lambda line: None, limit_s=0.0)
    with pytest.raises(HandlerLoadError, match=r"failed for model noop: pip was ended after 0"):
        installed(order, Entries(tmp_path / "cache"))


def test_pip_is_ended_when_what_it_installs_takes_too_much_room(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("")
    order = PackageOrder("noop", tmp_path / "requirements.txt", "", lambda line: None, max_bytes=100)
    with pytest.raises(HandlerLoadError, match=r"it takes more than 100 B, a fifth of models_cache.max_gib"):
        installed(order, Entries(tmp_path / "cache"))
    assert Entries(tmp_path / "cache").all() == []
