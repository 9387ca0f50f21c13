from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from penstock.broker.blobs.copies import Copies
from penstock.broker.blobs.files import BlobsUnavailable, LocalBlobs
from penstock.broker.blobs.objects import ObjectBlobs, open_objects
from penstock.broker.blobs.opening import open_blobs
from penstock.errors import ConfigError, StoreUnavailable
from penstock.job import BlobLocation, new_serial
from penstock.settings.tables import Settings

SECRET = "hidden-from-all"


def input_name() -> str:
    return f"{new_serial()}.in"


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectBlobs:
    """A bucket behind a port on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
    for name, value in {"ALLOW_HTTP": "true", "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": SECRET, "REGION": "r"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr("penstock.broker.blobs.objects._RETRIES", 0)
    found = open_blobs(BlobLocation(tmp_path, "s3://bucket/deep", tmp_path / "copies"))
    assert isinstance(found, ObjectBlobs)
    return found


def test_a_store_that_does_not_answer_is_told_with_what_to_look_at_and_without_secrets(
    nowhere: ObjectBlobs, tmp_path: Path
) -> None:
    name = input_name()
    calls: list[Callable[[], object]] = [
        lambda: nowhere.put(name, b"x"),
        lambda: nowhere.put_all([(name, b"x"), (input_name(), b"y")]),
        lambda: nowhere.get(name),
        lambda: nowhere.peek(name, 1),
        lambda: nowhere.readable([name, input_name()]),
        lambda: nowhere.belong_to("me"),
        lambda: list(nowhere.names()),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable) as told:
            call()
        assert isinstance(told.value, BlobsUnavailable)
        assert "s3://bucket/deep" in told.value.message
        assert "\n" not in told.value.message
        assert SECRET not in f"{told.value!r} {told.value.__cause__}"
        assert "store.blob_url" in (told.value.hint or "")
    assert list((tmp_path / "copies").rglob("*.in.*")) == []


def test_a_store_that_takes_requests_and_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nowhere: ObjectBlobs
) -> None:
    """Regression: such a store blocked a slot for the 30 s of the library's timeout, twice as long as a lease lasts."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("AWS_READ_TIMEOUT", "200ms")
        with pytest.raises(BlobsUnavailable):
            open_objects("s3://bucket/deep", Copies(tmp_path)).put(input_name(), b"x")


def test_silence_is_bounded_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nowhere: ObjectBlobs
) -> None:
    for given, wanted in ((None, "9s"), ("30s", "30s")):
        monkeypatch.delenv("AWS_READ_TIMEOUT", raising=False)
        if given:
            monkeypatch.setenv("AWS_READ_TIMEOUT", given)
        open_objects("s3://bucket/deep", Copies(tmp_path))
        assert os.environ["AWS_READ_TIMEOUT"] == wanted


def test_a_deletion_that_fails_is_left_to_the_collection_of_orphans(nowhere: ObjectBlobs) -> None:
    nowhere.delete_all([input_name()])


def test_copies_for_children_are_their_own_each_time_and_private(tmp_path: Path) -> None:
    blobs, name = ObjectBlobs(MemoryStore(), Copies(tmp_path), location="memory"), input_name()
    blobs.put(name, b"x" * 3_000_000)
    [first], [second] = blobs.readable([name]), blobs.readable([name])
    assert first is not None
    assert second is not None
    assert first.own
    first.path.unlink()
    assert second.path.read_bytes() == b"x" * 3_000_000
    assert second.path.parent.stat().st_mode & 0o777 == 0o700


def test_the_copies_of_a_killed_process_go_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from penstock.broker.blobs.copies import Copies
Copies(Path({str(tmp_path)!r})).fresh("a").write_bytes(b"x")
print("ready", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"ready\n"
    Copies(tmp_path).fresh("b").write_bytes(b"y")
    assert len(list(tmp_path.glob("*/a.*"))) == 1
    other.kill()
    other.communicate()
    Copies(tmp_path).fresh("c")
    assert list(tmp_path.glob("*/a.*")) == []
    assert len(list(tmp_path.glob("*/b.*"))) == 1


def test_a_folder_by_url_is_the_folder_and_no_url_too(tmp_path: Path) -> None:
    place = open_blobs(BlobLocation(tmp_path / "unused", f"file://{tmp_path}/a%20b", tmp_path / "copies"))
    assert isinstance(place, LocalBlobs)
    place.put(input_name(), b"x")
    assert (tmp_path / "a b").is_dir()
    assert isinstance(open_blobs(BlobLocation(tmp_path)), LocalBlobs)


@pytest.mark.parametrize(
    "url", ["s3://key:secret@bucket/x", "http://bucket", "s3://", "s3://bucket/x?sig=secret", "file://relative", "memory:///"]
)
def test_a_url_with_credentials_or_of_no_known_store_is_refused_by_the_settings(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="blob_url"):
        Settings.load(env={"PENSTOCK_STORE__BLOB_URL": url, "PENSTOCK_STORE__STATE_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    "url", ["", "s3://bucket", "s3://bucket/a/b", "gs://bucket/a", "az://account/box/a", "file:///srv/blobs"]
)
def test_the_settings_take_objects_and_folders(tmp_path: Path, url: str) -> None:
    settings = Settings.load(env={"PENSTOCK_STORE__BLOB_URL": url, "PENSTOCK_STORE__STATE_DIR": str(tmp_path)})
    assert settings.blob_location == BlobLocation(tmp_path / "blobs", url, tmp_path / "blob-copies")
