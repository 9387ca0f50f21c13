"""Models from a hub, a bucket and a URL: fetched once, resumed, checked, kept within the cache's limit; real servers."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

from penstock.errors import ConfigError
from penstock.workers.fetch.cache import CacheLimits, ModelCache
from penstock.workers.fetch.origin import DiskFull, FetchFailed
from tests.acceptance.test_start_refusals import has_namespaces
from tests.eventually import eventually
from tests.model_hub import Hub, model_hub
from tests.s3_server import BUCKET

REPO = "org/name"
MODEL = random.Random(1).randbytes(3_000_000)
FILES = {
    "onnx/model.onnx": MODEL,
    "onnx/model.onnx_data": b"d" * 5_000,
    "labels.txt": b"cat\n",
    "run.py": b"1/0",
    "big.bin": b"b" * 9,
}
LIMITS = CacheLimits(1 << 30, stall_s=5.0)
FETCH = """
import json, os, sys
from pathlib import Path
from penstock.workers.fetch.cache import CacheLimits, ModelCache
found = ModelCache(Path(sys.argv[1]), CacheLimits(1 << 30, stall_s=30.0)).fetch(sys.argv[2])
print(json.dumps([found.path, found.source, os.stat(found.path).st_size]))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with model_hub() as found:
        found.push(REPO, FILES)
        yield found


@pytest.fixture
def cache(hub: Hub, tmp_path: Path) -> ModelCache:
    return made(hub, tmp_path)


def made(hub: Hub, tmp_path: Path, limits: CacheLimits = LIMITS, **environment: str) -> ModelCache:
    return ModelCache(tmp_path / "cache", limits, {"HF_ENDPOINT": hub.url, **environment})


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plain(hub: Hub, data: bytes = MODEL, *, sum_of: bytes | None = None) -> str:
    hub.plain["/files/m.onnx"] = data
    return f"{hub.url}/files/m.onnx#sha256={digest(data if sum_of is None else sum_of)}"


def left(tmp_path: Path) -> list[str]:
    """The entries of the cache, whole and partial."""
    return sorted(path.name for path in (tmp_path / "cache").iterdir() if path.name not in ("locks", "known"))


# A hub.


def test_a_repository_is_fetched_at_the_commit_of_its_branch(hub: Hub, cache: ModelCache) -> None:
    found = cache.fetch(f"hf://{REPO}")
    commit = hub.branches[REPO]["main"]
    assert found.source == f"hf://{REPO}@{commit}/onnx/model.onnx"
    model = Path(found.path)
    assert model.read_bytes() == MODEL
    folder = model.parents[1]
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert there == {"onnx/model.onnx", "onnx/model.onnx_data", "labels.txt"}
    assert found.size_bytes == len(MODEL) + 5_000 + 4


def test_a_large_file_comes_from_where_the_hub_redirects_to_and_the_token_does_not_go_there(hub: Hub, tmp_path: Path) -> None:
    hub.token = "hf_hunter2"
    found = made(hub, tmp_path, HF_TOKEN="hf_hunter2").fetch(f"hf://{REPO}")
    assert Path(found.path).read_bytes() == MODEL
    assert {one.token for one in hub.asked if one.server == "hub"} == {"Bearer hf_hunter2"}
    assert {one.token for one in hub.asked if one.server == "large"} == {""}
    assert hub.gets("model.onnx")[-1].server == "large"


def test_without_a_token_the_refusal_says_which_variable_to_set(hub: Hub, cache: ModelCache) -> None:
    hub.token = "hf_hunter2"
    with pytest.raises(FetchFailed, match="answers 401") as refused:
        cache.fetch(f"hf://{REPO}")
    assert "HF_TOKEN" in str(refused.value.hint)
    assert len(hub.asked) == 1, "asking again would not help"


@pytest.mark.parametrize("source", ["hf://org/other", f"hf://{REPO}@v9"])
def test_what_the_hub_does_not_know_is_told_at_once(hub: Hub, cache: ModelCache, source: str) -> None:
    with pytest.raises(FetchFailed, match="there is no such repository, revision or file"):
        cache.fetch(source)
    assert len(hub.asked) == 1


def test_the_commit_is_fetched_again_only_if_the_branch_has_moved(hub: Hub, cache: ModelCache) -> None:
    first = cache.fetch(f"hf://{REPO}")
    again = cache.fetch(f"hf://{REPO}")
    assert again.path == first.path
    assert len(hub.gets("/model.onnx")) == 2, "one request to the hub, one to where it redirected"
    hub.push(REPO, {**FILES, "onnx/model.onnx": MODEL[::-1]})
    moved = cache.fetch(f"hf://{REPO}")
    assert Path(moved.path).read_bytes() == MODEL[::-1]
    assert Path(first.path).read_bytes() == MODEL


def test_a_version_stays_at_the_commit_that_it_was_first_loaded_from(hub: Hub, cache: ModelCache, tmp_path: Path) -> None:
    first = cache.fetch(f"hf://{REPO}")
    hub.push(REPO, {**FILES, "onnx/model.onnx": MODEL[::-1]})
    assert cache.fetch(f"hf://{REPO}", kept=first.source).source == first.source
    first.lock.close()
    shutil.rmtree(tmp_path / "cache")
    there = made(hub, tmp_path).fetch(f"hf://{REPO}", kept=first.source)
    assert there.source == first.source
    assert Path(there.path).read_bytes() == MODEL


def test_a_fixed_commit_that_is_here_asks_no_network(hub: Hub, cache: ModelCache) -> None:
    source = f"hf://{REPO}@{hub.branches[REPO]['main']}"
    cache.fetch(source)
    hub.asked.clear()
    assert Path(cache.fetch(source).path).read_bytes() == MODEL
    assert hub.asked == []


def test_code_of_a_repository_comes_whole_with_trust_and_not_at_all_without(hub: Hub, cache: ModelCache) -> None:
    commit = hub.branches[REPO]["main"]
    with pytest.raises(FetchFailed, match="trust_remote_code"):
        cache.fetch(f"hf://{REPO}@{commit}/run.py")
    assert hub.gets("run.py") == []
    with pytest.raises(FetchFailed, match="a source that cannot change"):
        cache.fetch(f"hf://{REPO}/run.py:Net", trust_remote_code=True)
    found = cache.fetch(f"hf://{REPO}@{commit}/run.py:Net", trust_remote_code=True)
    assert found.path.endswith("/run.py:Net")
    assert (Path(found.path).parent / "big.bin").exists()


def test_a_small_file_that_differs_from_its_blob_in_git_is_refused(hub: Hub, cache: ModelCache) -> None:
    listing, first = hub.files, hub.files(REPO, "main")
    assert first is not None
    commit, files = first
    calls = []

    def changed(repo: str, revision: str) -> tuple[str, dict[str, bytes]]:
        calls.append(revision)
        return (commit, files) if len(calls) == 1 else (commit, {**files, "labels.txt": b"dog\n"})

    hub.files = changed  # type: ignore[method-assign]
    with pytest.raises(FetchFailed, match=r"labels\.txt is not what it should be: its git sum is [0-9a-f]{40} and should be"):
        cache.fetch(f"hf://{REPO}")
    hub.files = listing  # type: ignore[method-assign]
    assert Path(cache.fetch(f"hf://{REPO}").path).read_bytes() == MODEL


def test_the_server_of_these_tests_is_a_hub_to_the_hubs_own_client(hub: Hub, tmp_path: Path) -> None:
    library = pytest.importorskip("huggingface_hub")
    hub.token = "hf_hunter2"
    path = library.hf_hub_download(
        REPO, "onnx/model.onnx", endpoint=hub.url, token="hf_hunter2", cache_dir=tmp_path / "theirs", library_name="penstock"
    )
    assert Path(path).read_bytes() == MODEL
    info = library.HfApi(endpoint=hub.url, token="hf_hunter2").model_info(REPO, files_metadata=True)
    assert info.sha == hub.branches[REPO]["main"]
    assert {one.rfilename for one in info.siblings} == set(FILES)


# A URL.


def test_a_file_is_fetched_from_a_url_and_checked(hub: Hub, cache: ModelCache) -> None:
    found = cache.fetch(plain(hub))
    assert Path(found.path).read_bytes() == MODEL
    assert Path(found.path).name == "m.onnx"
    cache.fetch(plain(hub))
    assert [one.first for one in hub.gets("m.onnx")] == [0, 0], "one request for the size, one for the bytes"


def test_a_wrong_checksum_fails_with_both_sums_and_leaves_no_bytes(hub: Hub, cache: ModelCache, tmp_path: Path) -> None:
    wrong = plain(hub, sum_of=b"other")
    with pytest.raises(FetchFailed) as refused:
        cache.fetch(wrong)
    assert digest(MODEL) in refused.value.message
    assert digest(b"other") in refused.value.message
    assert not list((tmp_path / "cache").rglob("m.onnx"))
    assert Path(cache.fetch(plain(hub)).path).read_bytes() == MODEL


def test_a_file_that_is_cut_goes_on_where_it_was_cut(hub: Hub, cache: ModelCache) -> None:
    hub.cut_after = [1_000_000, 500_000]
    assert Path(cache.fetch(plain(hub)).path).read_bytes() == MODEL
    assert [one.first for one in hub.gets("m.onnx")] == [0, 0, 1_000_000, 1_500_000]


def test_a_server_without_ranges_sends_the_file_anew(hub: Hub, cache: ModelCache) -> None:
    hub.cut_after, hub.takes_ranges = [1_000_000], False
    assert Path(cache.fetch(plain(hub)).path).read_bytes() == MODEL


def test_a_server_that_falls_silent_is_left_and_the_bytes_are_kept(hub: Hub, tmp_path: Path) -> None:
    hub.silent_after = 1_000_000
    impatient = made(hub, tmp_path, CacheLimits(1 << 30, stall_s=0.1))
    with pytest.raises(FetchFailed, match=r"nothing came for 0\.1 s; gave up after 4 tries"):
        impatient.fetch(plain(hub, MODEL[:1_500_000]))
    hub.silent_after = None
    hub.speak.set()
    hub.asked.clear()
    assert Path(made(hub, tmp_path).fetch(plain(hub, MODEL[:1_500_000])).path).stat().st_size == 1_500_000
    assert hub.gets("m.onnx")[-1].first >= 1_000_000


def test_a_redirect_to_plain_http_elsewhere_is_not_followed(hub: Hub, cache: ModelCache) -> None:
    hub.large_url = "http://models.example"
    with pytest.raises(FetchFailed, match=r"models\.example is reached over plain http"):
        cache.fetch(f"hf://{REPO}")


# A bucket.


@pytest.fixture
def bucket(s3_url: str) -> str:
    for name, data in {"net.onnx": MODEL, "net.onnx_data": b"d" * 10, "labels.txt": b"cat\n", "other.md": b"x"}.items():
        obstore.put(from_url(s3_url), name, data)
    return s3_url


def test_a_folder_of_a_bucket_is_fetched_with_what_belongs_to_the_model(bucket: str, tmp_path: Path) -> None:
    found = ModelCache(tmp_path / "cache", LIMITS).fetch(f"{bucket}/")
    assert Path(found.path).read_bytes() == MODEL
    assert {path.name for path in Path(found.path).parent.iterdir()} == {"net.onnx", "net.onnx_data", "labels.txt"}
    assert found.source.startswith(f"{bucket}/#revision=")
    elsewhere = ModelCache(tmp_path / "other", LIMITS)
    assert elsewhere.fetch(f"{bucket}/", kept=found.source).source == found.source
    assert elsewhere.fetch(found.source).source == found.source


def test_one_object_is_fetched_with_what_begins_with_its_name(bucket: str, tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "cache", LIMITS)
    found = cache.fetch(f"{bucket}/net.onnx#sha256={digest(MODEL)}")
    assert {path.name for path in Path(found.path).parent.iterdir()} == {"net.onnx", "net.onnx_data"}
    with pytest.raises(FetchFailed, match="is not what it should be"):
        cache.fetch(f"{bucket}/net.onnx#sha256={digest(b'')}")


def test_objects_that_have_changed_are_no_longer_the_version_that_was_loaded(bucket: str, tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "cache", LIMITS)
    first = cache.fetch(f"{bucket}/net.onnx")
    assert cache.fetch(f"{bucket}/net.onnx", kept=first.source).path == first.path
    obstore.put(from_url(bucket), "net.onnx", MODEL[::-1])
    assert cache.fetch(f"{bucket}/net.onnx", kept=first.source).path == first.path, "what is here is still that version"
    elsewhere = ModelCache(tmp_path / "other", LIMITS)
    with pytest.raises(FetchFailed, match="the objects have changed since this version was first loaded") as refused:
        elsewhere.fetch(f"{bucket}/net.onnx", kept=first.source)
    assert 'version = "2"' in str(refused.value.hint)
    assert Path(elsewhere.fetch(f"{bucket}/net.onnx").path).read_bytes() == MODEL[::-1]


@pytest.mark.parametrize("missing", [f"s3://{BUCKET}/no/such.onnx", f"s3://{BUCKET}/no/such/", "s3://no-such-bucket/m.onnx"])
def test_an_object_that_is_not_there_is_told(bucket: str, tmp_path: Path, missing: str) -> None:
    with pytest.raises(FetchFailed, match="does not exist") as refused:
        ModelCache(tmp_path / "cache", LIMITS).fetch(missing)
    assert "AWS_ENDPOINT" in str(refused.value.hint)


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
    assert "models_cache.max_gib" in str(refused.value.hint)
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


def test_a_source_that_cannot_be_read_is_a_fault_of_the_settings(cache: ModelCache) -> None:
    with pytest.raises(ConfigError, match="has no checksum"):
        cache.fetch("https://h.example/m.onnx")
