"""The models that a worker fetches: a slot waits without a child, hears why it failed, and tries again; progress is logged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from selectors import DefaultSelector

import pytest
import structlog
from structlog.testing import capture_logs

from penstock.errors import PenstockError, StoreUnavailable
from penstock.model_cache.entries import Entries
from penstock.model_spec import Limits, ModelSpec
from penstock.workers.devices.pins import Pin
from penstock.workers.fetch.cache import CacheLimits
from penstock.workers.fetch.fetches import MODEL_FETCHED, MODEL_FETCHING, Located, ModelFetches
from penstock.workers.slot.child.events import ChildUnloadable
from penstock.workers.slot.child.manager import ChildManager
from tests import archives
from tests.eventually import eventually
from tests.model_hub import Hub, model_hub

FILE = b"m" * 300_000


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with model_hub() as found:
        found.push("org/net", {"net.onnx": FILE})
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        yield found


def spec(source: str, **fields: object) -> ModelSpec:
    return ModelSpec("net", source, **fields)  # type: ignore[arg-type]


def fetches(folder: Path, kept: str = "") -> ModelFetches:
    return ModelFetches(folder, CacheLimits(1 << 30, stall_s=5.0), lambda spec: kept)


def test_a_model_that_lies_here_is_where_it_is(tmp_path: Path) -> None:
    here = spec("/models/net.onnx")
    assert fetches(tmp_path).locate(here) == (here, "")


def test_a_model_is_being_fetched_until_it_is_here_and_then_no_more(hub: Hub, tmp_path: Path) -> None:
    found, remote = fetches(tmp_path), spec("hf://org/net")
    with capture_logs() as lines:
        assert found.locate(remote) is None
        local, source = eventually(lambda: found.locate(remote))
    assert Path(local.source).read_bytes() == FILE
    assert source == f"hf://org/net@{hub.branches['org/net']['main']}/net.onnx"
    asked = len(hub.asked)
    assert found.locate(remote) == (local, source)
    assert len(hub.asked) == asked
    assert [line["event"] for line in lines][-1] == MODEL_FETCHED


def test_progress_is_logged_at_once_and_then_every_few_seconds(hub: Hub, tmp_path: Path) -> None:
    with capture_logs() as lines:
        found, remote = fetches(tmp_path), spec("hf://org/net")
        eventually(lambda: found.locate(remote))
    assert [line["progress"] for line in lines if line["event"] == MODEL_FETCHING] == ["0 B of 293 KiB"]


def test_a_fault_is_told_once_and_the_next_look_tries_again(hub: Hub, tmp_path: Path) -> None:
    found, remote = fetches(tmp_path), spec("hf://org/late")

    def told() -> str:
        try:
            found.locate(remote)
        except PenstockError as error:
            return error.message
        return ""

    assert "answers 404" in eventually(told)
    hub.push("org/late", {"late.onnx": FILE})
    local, _ = eventually(lambda: found.locate(remote))
    assert local.source.endswith("/late.onnx")


def test_while_the_store_cannot_say_which_commit_a_version_keeps_nothing_is_fetched(hub: Hub, tmp_path: Path) -> None:
    def away(spec: ModelSpec) -> str:
        raise StoreUnavailable("Redis is away")

    found, remote = ModelFetches(tmp_path, CacheLimits(1 << 30), away), spec("hf://org/net")
    with pytest.raises(StoreUnavailable):
        eventually(lambda: found.locate(remote))
    assert hub.asked == []


def supervisor(locate: object) -> ChildManager:
    limits = Limits(load_timeout_s=0.001)
    return ChildManager(spec("hf://org/net", limits=limits), Pin((), 1), DefaultSelector(), locate, max_batch_size=1)  # type: ignore[arg-type]


def test_a_slot_starts_no_child_and_counts_no_load_time_while_its_model_is_fetched() -> None:
    def nothing_yet(spec: ModelSpec) -> Located | None:
        return None

    child = supervisor(nothing_yet)
    for now in (0.0, 1_000.0, 1_000_000.0):
        assert child.tend(now) == []
        assert (child.pid, child.state) == (0, "loading")
        assert now < child.due_at(is_draining=False) < now + 1.0


def test_a_slot_whose_model_cannot_be_fetched_says_why_and_tries_again_later() -> None:
    def fails(spec: ModelSpec) -> Located | None:
        raise PenstockError("no such repository", hint="check the source")

    with structlog.testing.capture_logs():
        child = supervisor(fails)
        assert child.tend(0.0) == [ChildUnloadable("no such repository. check the source")]
        assert child.tend(0.5) != [], "the first retry comes at once"
        assert child.tend(1.0) == [], "the next after a second"
    assert (child.state, child.error) == ("failed", "no such repository. check the source")


def test_an_archive_is_unpacked_before_its_child_starts_also_one_that_was_fetched(hub: Hub, tmp_path: Path) -> None:
    packed = archives.mar(tmp_path / "noop.mar")
    hub.push("org/archives", {"noop.mar": packed.read_bytes()})
    commit = hub.branches["org/archives"]["main"]
    far = spec(f"hf://org/archives@{commit}/noop.mar", trust_remote_code=True)
    found = fetches(tmp_path / "cache")
    near, _ = eventually(lambda: found.locate(spec(str(packed), version="2")))
    fetched, source = eventually(lambda: found.locate(far))
    assert near.source == fetched.source
    assert (Path(near.source) / "noop.py").read_text() == archives.HANDLER
    assert source == far.source


def test_an_archive_that_is_refused_is_the_error_of_its_slot(tmp_path: Path) -> None:
    (tmp_path / "bad.mar").write_bytes(b"no archive")
    found, bad = fetches(tmp_path), spec(str(tmp_path / "bad.mar"))
    assert found.locate(bad) is None
    with pytest.raises(PenstockError, match="is neither a zip nor a gzip file"):
        eventually(lambda: found.locate(bad))


def test_a_version_that_is_forgotten_is_what_its_archive_is_then(tmp_path: Path) -> None:
    packed, found = archives.mar(tmp_path / "noop.mar"), fetches(tmp_path / "cache")
    before, _ = eventually(lambda: found.locate(spec(str(packed))))
    archives.mar(packed, archives.files(extra={"new": "1"}))
    assert found.locate(spec(str(packed))) == (before, "")
    found.forget(("net", "1"))
    after, _ = eventually(lambda: found.locate(spec(str(packed))))
    assert (Path(after.source) / "new").exists()
    # What was used before may be deleted now.
    assert Entries(tmp_path / "cache").lock(Path(before.source).parent.name) is not None
