"""Which file of a source is the model, which files travel with it, and what goes from a full cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model_cache.entries import Entry, entry_name, to_delete
from penstock.settings.remote_sources import read_source
from penstock.workers.fetch.choice import model_file, wanted
from penstock.workers.fetch.origin import FetchFailed, RemoteFile

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def files(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, 1) for path in paths]


def chosen(source: str, *paths: str, trust: bool = False) -> str:
    return model_file(read_source(source), files(*paths), trust_remote_code=trust)


def test_the_only_model_file_is_the_model() -> None:
    assert chosen("hf://org/name", "README.md", "onnx/model.onnx", "onnx/model.onnx_data", "penstock.toml", "run.py") == (
        "onnx/model.onnx"
    )
    assert chosen("s3://bucket/b/", "b/B.ONNX", "b/labels.txt") == "b/B.ONNX"


def test_several_model_files_are_listed_so_that_the_user_can_name_one() -> None:
    with pytest.raises(FetchFailed, match=r"holds 2 model files; name one at the end of the source: a\.onnx, b\.safetensors"):
        chosen("hf://org/name", "b.safetensors", "a.onnx", "README.md")


def test_a_repository_without_a_model_file_says_what_there_is() -> None:
    with pytest.raises(FetchFailed, match=r"holds no model file \(\.onnx.*\); there are config\.json, penstock\.toml, run\.py"):
        chosen("hf://org/name", "penstock.toml", "run.py", "config.json")
    with pytest.raises(FetchFailed, match="there is no file at all"):
        chosen("hf://org/name")


def test_a_file_that_is_named_must_exist() -> None:
    assert chosen("hf://org/name/a.onnx", "a.onnx", "b.onnx") == "a.onnx"
    with pytest.raises(FetchFailed, match=r"hf://org/name/c\.onnx does not exist; there are a\.onnx, b\.onnx"):
        chosen("hf://org/name/c.onnx", "a.onnx", "b.onnx")


def test_a_long_list_is_cut() -> None:
    with pytest.raises(FetchFailed, match=r"and 8 more$"):
        chosen("hf://org/name", *(f"{number:02}.onnx" for number in range(20)))


def test_code_is_chosen_only_if_it_is_trusted() -> None:
    with pytest.raises(FetchFailed, match="trust_remote_code"):
        chosen("hf://org/name", "net.pt2")
    assert chosen(f"hf://org/name@{COMMIT}", "net.pt2", trust=True) == "net.pt2"


def test_weights_beside_an_onnx_file_and_small_texts_travel_with_it() -> None:
    found = files("a.onnx", "a.onnx_data", "b.onnx", "tokenizer.json", "sub/labels.txt", "handler.py", "penstock.toml", "x.bin")
    assert [file.path for file in wanted(found, "a.onnx")] == ["a.onnx", "a.onnx_data", "sub/labels.txt", "tokenizer.json"]


def test_of_code_everything_travels() -> None:
    found = files("handler.py", "net/layers.py", "x.bin")
    assert len(wanted(found, "handler.py")) == 3


@pytest.mark.parametrize("path", ["../a.json", "/etc/cron.d/a.json", "a/../../b.txt", "a\\b.json"])
def test_a_listing_that_names_a_path_outside_is_refused_whole(path: str) -> None:
    with pytest.raises(FetchFailed, match="would lie outside its folder; nothing was fetched"):
        wanted(files("m.onnx", path), "m.onnx")


def entry(name: str, size_bytes: int, used_ns: int) -> Entry:
    return Entry(Path("/cache") / name, name, "m.onnx", size_bytes, used_ns)


def test_nothing_goes_while_all_fits() -> None:
    assert to_delete([entry("a", 40, 1), entry("b", 40, 2)], 20, 100, keep="c") == []


def test_the_least_recently_used_goes_first() -> None:
    entries = [entry("new", 40, 9), entry("old", 40, 1), entry("mid", 20, 5)]
    assert [one.name for one in to_delete(entries, 1, 100, keep="c")] == ["old", "mid", "new"]


def test_the_entry_that_is_being_made_is_neither_counted_twice_nor_deleted() -> None:
    entries = [entry("a", 40, 1), entry("b.partial", 60, 2)]
    assert to_delete(entries, 60, 100, keep="b") == []
    assert [one.name for one in to_delete(entries, 61, 100, keep="b")] == ["a"]


def test_two_sources_never_share_an_entry() -> None:
    one, other = entry_name("hf://org/name@a/m.onnx"), entry_name("hf://org/name-a/m.onnx")
    assert one != other
    assert one.startswith("org-name-a-m.onnx-")
    assert "/" not in entry_name("hf://../../x")
