"""The cache of fetched models: one fetch for many processes, offline use, the limit, a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import DiskFull
from penstock.workers.fetch.cache import CacheLimits, ModelCache
from penstock.workers.fetch.origin import FetchFailed
from tests.acceptance.test_start_refusals import has_namespaces
from tests.eventually import eventually
from tests.integration.fetched import LIMITS, MODEL, REPO, digest, filled_hub, left, made, plain
from tests.model_hub import Hub

FETCH = """
import json, os, sys
from pathlib import Path
from penstock.errors import DiskFull
from penstock.workers.fetch.cache import CacheLimits, ModelCache
found = ModelCache(Path(sys.argv[1]), CacheLimits(1 << 30, stall_s=30.0)).fetch(sys.argv[2])
print(json.dumps([found.path, found.source, os.stat(found.path).st_size]))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with filled_hub() as found:
        yield found


@pytest.fixture
def cache(hub: Hub, tmp_path: Path) -> ModelCache:
    return made(hub, tmp_path)


# Several processes, and processes that die.


def process(folder: Path, source: str, hub: Hub) -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_ENDPOINT": hub.url}
    command = [sys.executable, "-c", FETCH, str(folder), source]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_ten_processes_fetch_once(hub: Hub, tmp_path: Path) -> None:
    hub.pace_s = 0.01
    fetchers = [process(tmp_path / "cache", f"hf://{REPO}", hub) for _ in range(10)]
    said = [json.loads(fetcher.communicate(timeout=60)[0]) for fetcher in fetchers]
    assert {fetcher.returncode for fetcher in fetchers} == {0}
    assert len({tuple(one) for one in said}) == 1
    assert said[0][2] == len(MODEL)
    assert len([one for one in hub.gets("/model.onnx") if one.server == "large"]) == 1
    assert len(hub.gets("/labels.txt")) == 1


def test_a_fetcher_that_is_killed_frees_its_lock_and_the_next_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.silent_after = 2_000_000
    source = plain(hub)
    doomed = process(tmp_path / "cache", source, hub)
    partial = eventually(lambda: next((tmp_path / "cache").rglob("m.onnx"), None))
    eventually(lambda: partial.stat().st_size == 2_000_000)
    waiting = process(tmp_path / "cache", source, hub)
    hub.silent_after = None
    doomed.send_signal(signal.SIGKILL)
    doomed.communicate()
    said = json.loads(waiting.communicate(timeout=60)[0])
    assert Path(said[0]).read_bytes() == MODEL
    assert [one.first for one in hub.gets("m.onnx")][-1] == 2_000_000
    assert left(tmp_path) == [Path(said[0]).parents[1].name]


# Offline.


def test_offline_takes_what_is_here_and_says_what_is_missing(hub: Hub, cache: ModelCache, tmp_path: Path) -> None:
    first = cache.fetch(f"hf://{REPO}")
    hub.asked.clear()
    offline = made(hub, tmp_path, CacheLimits(1 << 30, is_offline=True))
    assert offline.fetch(f"hf://{REPO}").path == first.path
    assert offline.fetch(f"hf://{REPO}", kept=first.source).path == first.path
    with pytest.raises(
        FetchFailed, match=r"hf://org/other is not in the models' cache .*, and models_cache\.offline is set"
    ) as told:
        offline.fetch("hf://org/other")
    assert "penstock models fetch" in str(told.value.hint)
    assert hub.asked == []


def test_while_the_hub_is_away_a_branch_is_what_it_was_last_found_to_be(hub: Hub, cache: ModelCache, tmp_path: Path) -> None:
    first = cache.fetch(f"hf://{REPO}")
    nowhere = ModelCache(tmp_path / "cache", LIMITS, {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert nowhere.fetch(f"hf://{REPO}").path == first.path
    with pytest.raises(FetchFailed, match="and the models' cache has nothing of it"):
        nowhere.fetch("hf://org/other")


# The limit.


def sized(hub: Hub, name: str, count: int) -> str:
    data = name.encode() * count
    hub.plain[f"/files/{name}.onnx"] = data
    return f"{hub.url}/files/{name}.onnx#sha256={digest(data)}"


def test_the_least_recently_used_model_that_nobody_uses_goes_for_a_new_one(hub: Hub, tmp_path: Path) -> None:
    cache = made(hub, tmp_path, CacheLimits(10_000))
    found = {name: cache.fetch(sized(hub, name, 3_000)) for name in ("a", "b", "c")}
    # The clock of a file system stands still for milliseconds.
    for used_ns, name in enumerate(("b", "c", "a")):
        os.utime(Path(found[name].path).parents[1] / "entry.json", ns=(used_ns, used_ns))
    found["a"].lock.close()
    found["c"].lock.close()
    cache.fetch(sized(hub, "d", 3_000)).lock.close()
    there = {Path(entry.path).name for entry in cache.entries.all()}
    assert there == {"a.onnx", "b.onnx", "d.onnx"}, "b is the oldest, but in use"
    cache.fetch(sized(hub, "a", 3_000)).lock.close()
    assert all(entry.used_ns > 2 for entry in cache.entries.all() if entry.path.name == "a.onnx"), "a use counts"


def test_a_model_that_cannot_fit_is_refused_before_it_is_fetched(hub: Hub, tmp_path: Path) -> None:
    cache = made(hub, tmp_path, CacheLimits(10_000))
    with pytest.raises(DiskFull, match=r"has 10\.7 KiB, and the models' cache may have 9\.77 KiB") as refused:
        cache.fetch(sized(hub, "a", 11_000))
    assert "models_cache.max_bytes" in str(refused.value.hint)
    held = cache.fetch(sized(hub, "b", 9_000))
    with pytest.raises(DiskFull, match="what is in use of the models' cache leaves less"):
        cache.fetch(sized(hub, "c", 9_000))
    assert left(tmp_path) == [Path(held.path).parents[1].name]


def test_what_nobody_uses_can_be_deleted(hub: Hub, cache: ModelCache, tmp_path: Path) -> None:
    used, unused = cache.fetch(sized(hub, "a", 10)), cache.fetch(sized(hub, "b", 10))
    unused.lock.close()
    assert [Path(entry.path).name for entry in cache.prune()] == ["b.onnx"]
    assert left(tmp_path) == [Path(used.path).parents[1].name]


# Run as root of a namespace of its own, where a small disk can be mounted. The fetcher writes half, then the disk fills.
FILL = f"""
set -e
mount -t tmpfs -o size=$2 tmpfs disk
"{sys.executable}" -c "$3" disk/cache "$1" > out 2> err &
if [ "$2" = 8m ]; then
  until [ "$(cat disk/cache/*.partial/files/m.onnx 2>/dev/null | wc -c)" -ge 1000000 ]; do sleep 0.02; done
  cp /dev/zero disk/fill 2>/dev/null || true
  touch filled
fi
wait $! || true
find disk/cache -name '*.partial' > left
"""


@pytest.mark.skipif(not has_namespaces(), reason="a small disk of one's own needs user namespaces")
@pytest.mark.parametrize(
    ("disk", "words"),
    [("1m", "needs 2.86 MiB more, and the disk of disk/cache has"), ("8m", "the disk of the models' cache is full")],
    ids=["known before", "full meanwhile"],
)
def test_a_full_disk_fails_in_words_and_leaves_nothing_behind(hub: Hub, tmp_path: Path, disk: str, words: str) -> None:
    (tmp_path / "disk").mkdir()
    hub.silent_after = 1_000_000
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FILL, "sh", plain(hub), disk, FETCH]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as fetcher:
        if disk == "8m":
            eventually((tmp_path / "filled").exists)
            hub.silent_after = None
            hub.speak.set()
        assert fetcher.wait(60) == 0
    assert f"DiskFull: {plain(hub)}" in (tmp_path / "err").read_text()
    assert words in (tmp_path / "err").read_text()
    assert (tmp_path / "left").read_text() == ""
