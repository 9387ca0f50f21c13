"""Models from a hub, a bucket and a URL: looked up, fetched, resumed and checked; real servers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

from penstock.errors import ConfigError
from penstock.workers.fetch.cache import CacheLimits, ModelCache
from penstock.workers.fetch.origin import FetchFailed
from tests.integration.fetched import FILES, LIMITS, MODEL, REPO, digest, filled_hub, made, plain
from tests.model_hub import Hub
from tests.s3_server import BUCKET


@pytest.fixture
def hub() -> Iterator[Hub]:
    with filled_hub() as found:
        yield found


@pytest.fixture
def cache(hub: Hub, tmp_path: Path) -> ModelCache:
    return made(hub, tmp_path)


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


def test_a_source_that_cannot_be_read_is_a_fault_of_the_settings(cache: ModelCache) -> None:
    with pytest.raises(ConfigError, match="has no checksum"):
        cache.fetch("https://h.example/m.onnx")
