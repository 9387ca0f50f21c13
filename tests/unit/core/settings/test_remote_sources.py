"""Addresses of models: how they are read, which are refused and with which words, and which revision a version keeps."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.settings.remote_sources import (
    RemoteSource,
    code_fault,
    is_safe_path,
    pinned,
    read_source,
    remote_name,
    source_fault,
)
from penstock.settings.tables import Settings

COMMIT, SUM = "0123456789abcdef0123456789abcdef01234567", "ab" * 32


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf://org/name", RemoteSource("hf", "org/name")),
        ("hf://org/name@main", RemoteSource("hf", "org/name", "main")),
        ("hf://org/na.me-1@v1.0/onnx/model.onnx", RemoteSource("hf", "org/na.me-1", "v1.0", "onnx/model.onnx")),
        ("hf://org/name@refs%2Fpr%2F1", RemoteSource("hf", "org/name", "refs/pr/1")),
        (f"hf://org/name@{COMMIT}/m.py:Net", RemoteSource("hf", "org/name", COMMIT, "m.py", name="Net")),
        ("s3://bucket/a/model.onnx", RemoteSource("s3", "bucket", file="a/model.onnx")),
        ("s3://bucket/a/", RemoteSource("s3", "bucket", file="a/")),
        (f"s3://bucket/m.onnx#sha256={SUM}", RemoteSource("s3", "bucket", file="m.onnx", sha256=SUM)),
        ("s3://bucket/a/#revision=0123456789abcdef", RemoteSource("s3", "bucket", "0123456789abcdef", "a/")),
        (f"https://h.example/a/m.onnx#sha256={SUM}", RemoteSource("https", "https://h.example/a/m.onnx", "", "m.onnx", SUM)),
        (f"http://localhost:9/m.onnx#sha256={SUM}", RemoteSource("https", "http://localhost:9/m.onnx", "", "m.onnx", SUM)),
        (f"http://[::1]:9/m.onnx#sha256={SUM}", RemoteSource("https", "http://[::1]:9/m.onnx", "", "m.onnx", SUM)),
    ],
)
def test_an_address_has_these_parts_and_is_written_back_as_it_was(text: str, source: RemoteSource) -> None:
    assert read_source(text) == source
    assert str(source) == text


def test_a_checksum_may_be_written_in_capitals() -> None:
    assert read_source(f"https://h.example/m.onnx#sha256={SUM.upper()}").sha256 == SUM


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://h.example/m.onnx", "write https://h.example/m.onnx#sha256=..., with the 64 digits that `sha256sum` prints"),
        ("https://h.example/m.onnx#sha256=12", "after # write sha256= and the 64 hexadecimal digits"),
        ("https://h.example/m.onnx#md5=12", "after # write sha256="),
        ("https://h.example/", "names no file"),
        (f"https://h.example/..#sha256={SUM}", "without .."),
        (f"https://user:word@h.example/m.onnx#sha256={SUM}", "may hold no user name and password"),
        (f"http://h.example/m.onnx#sha256={SUM}", "http:// is for this machine only"),
        ("hf://name", "names no repository; write hf://org/name"),
        ("hf://org/name@", "names no repository"),
        ("hf://org/name/../../etc/passwd", "without .. and backslashes"),
        ("hf://org/name@main/a//b.onnx", "without .."),
        ("s3://bucket", "names no object; write s3://bucket/path/model.onnx"),
        ("s3://bucket/", "names no object"),
        ("s3://bucket/../m.onnx", "without .."),
        ("gs://bucket/m.onnx", "gs:// is no place that models are fetched from; write hf://org/name[@revision][/file]"),
        ("file:///m.onnx", "or the path of a file here"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_write(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_source(text)
    assert words in refused.value.message


def test_the_query_of_an_address_is_never_shown_because_it_may_hold_a_key() -> None:
    source = read_source(f"https://h.example/m.onnx?X-Signature=hunter2#sha256={SUM}")
    assert source.location.endswith("?X-Signature=hunter2")
    assert str(source) == f"https://h.example/m.onnx#sha256={SUM}"
    with pytest.raises(ConfigError) as refused:
        read_source("https://h.example/m.onnx?X-Signature=hunter2")
    assert "hunter2" not in refused.value.message


@pytest.mark.parametrize(
    ("text", "is_fixed"),
    [
        ("hf://org/name", False),
        ("hf://org/name@v1", False),
        (f"hf://org/name@{COMMIT}", True),
        (f"hf://org/name@main/m.onnx#sha256={SUM}", False),
        ("s3://bucket/m.onnx", False),
        (f"s3://bucket/m.onnx#sha256={SUM}", True),
        ("s3://bucket/m/#revision=0123456789abcdef", True),
        (f"https://h.example/m.onnx#sha256={SUM}", True),
    ],
)
def test_a_source_is_fixed_only_if_it_means_the_same_bytes_for_ever(text: str, is_fixed: bool) -> None:
    assert read_source(text).is_fixed is is_fixed


@pytest.mark.parametrize("file", ["handler.py", "m.pt2", "m.PLAN", "m.engine"])
def test_a_file_that_runs_code_takes_trust_and_a_fixed_revision(file: str) -> None:
    branch, commit = f"hf://org/name@main/{file}", f"hf://org/name@{COMMIT}/{file}"
    assert "write trust_remote_code = true" in source_fault(commit, trust_remote_code=False)
    assert f"hf://org/name@<commit>/{file}" in source_fault(branch, trust_remote_code=True)
    assert source_fault(commit, trust_remote_code=True) == ""
    assert "#sha256=" in source_fault(f"s3://bucket/{file}", trust_remote_code=True)


def test_trust_is_not_asked_for_files_of_numbers_and_for_files_here() -> None:
    for source in ("hf://org/name", "hf://org/name/m.onnx", "hf://org/name/m.safetensors", "models/handler.py", "a.b:Name"):
        assert source_fault(source, trust_remote_code=False) == ""


def test_a_folder_may_still_turn_out_to_hold_code() -> None:
    source = read_source("hf://org/name")
    assert "trust_remote_code" in code_fault(source, "net.pt2", trust_remote_code=False)
    assert code_fault(source, "net.onnx", trust_remote_code=False) == ""


def test_a_version_keeps_the_revision_that_it_was_first_loaded_from() -> None:
    kept = f"hf://org/name@{COMMIT}/onnx/model.onnx"
    assert str(pinned(read_source("hf://org/name@main"), kept)) == kept
    assert str(pinned(read_source("hf://org/name/onnx/model.onnx"), kept)) == kept
    for place in ("s3://bucket/a/", "s3://bucket/a/model.onnx"):
        assert str(pinned(read_source(place), f"{place}#revision=0123456789abcdef")) == f"{place}#revision=0123456789abcdef"


def test_the_revision_of_an_object_is_none_of_its_folder() -> None:
    source = read_source("s3://bucket/a/")
    assert pinned(source, "s3://bucket/a/model.onnx#revision=0123456789abcdef") == source


@pytest.mark.parametrize(
    "kept",
    [
        "",
        "model.onnx",
        "what://is/this",
        f"hf://org/other@{COMMIT}/onnx/model.onnx",
        f"hf://org/name@{COMMIT}/onnx/other.onnx",
        f"hf://org/name@{COMMIT}/onnx/model.onnx.onnx",
    ],
)
def test_another_source_under_the_same_version_keeps_nothing(kept: str) -> None:
    source = read_source("hf://org/name/onnx/model.onnx")
    assert pinned(source, kept) == source


def test_a_source_that_names_its_commit_stays_there() -> None:
    source = read_source(f"hf://org/name@{'f' * 40}")
    assert pinned(source, f"hf://org/name@{COMMIT}/m.onnx") == source


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf://org/Qwen3-0.6B", "Qwen3-0.6B"),
        ("hf://org/name/onnx/faces.onnx", "faces"),
        ("s3://bucket/models/faces/", "faces"),
        (f"https://h.example/a/faces.onnx#sha256={SUM}", "faces"),
    ],
)
def test_a_model_is_called_after_its_file_or_its_repository(text: str, name: str) -> None:
    assert remote_name(read_source(text)) == name


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../a", "a/../b", "a/./b", "a//b", "a\\b", "a\0b", "a/.."])
def test_a_path_that_leaves_its_folder_is_not_safe(path: str) -> None:
    assert not is_safe_path(path)
    assert is_safe_path("a/b.onnx")


def test_settings_refuse_an_address_with_the_words_of_its_fault() -> None:
    env = {"PENSTOCK_MODELS": '{"m": {"source": "https://h.example/m.onnx"}}'}
    with pytest.raises(ConfigError, match=r"models\.m: source: https://h\.example/m\.onnx has no checksum"):
        Settings.load(env=env)


def test_settings_leave_an_address_as_it_is() -> None:
    settings = Settings.load(env={"PENSTOCK_MODELS": '{"m": {"source": "hf://org/name"}}'}, need_files=True)
    assert [spec.source for spec in settings.specs()] == ["hf://org/name"]


def test_the_folder_of_the_cache_is_in_the_state_folder_unless_it_is_set() -> None:
    assert Settings.load(env={"PENSTOCK_STORE__STATE_DIR": "/state"}).models_dir.as_posix() == "/state/models"
    assert Settings.load(env={"PENSTOCK_MODELS_CACHE__DIR": "/big"}).models_dir.as_posix() == "/big"
    assert Settings.load(env={"PENSTOCK_MODELS_CACHE__MAX_BYTES": "536870912"}).models_cache.max_bytes == 1 << 29
    assert Settings.load(env={"PENSTOCK_MODELS_CACHE__OFFLINE": "true"}).models_cache.offline
