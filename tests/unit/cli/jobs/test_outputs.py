from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import Media
from penstock.cli.jobs.outputs import json_members, readable, save
from penstock.errors import BadRequest

PNG = Media(b"\x89PNG\xff", "image/png", "café.png")


def test_outputs_are_shown_as_json_text_or_their_size() -> None:
    assert readable({"y": 16}) == '{"y": 16}'
    assert readable(b"plain text") == "plain text"
    assert readable(b"\x89PNG\xff").startswith("5 bytes;")
    assert readable(PNG).startswith("5 bytes of image/png;")
    assert readable(Media(b"a,b\n", "text/csv")) == "a,b\n"


def test_a_line_of_json_has_the_bytes_of_a_file_with_their_type_and_name() -> None:
    assert json_members({"y": 16}) == {"output": {"y": 16}}
    assert json_members(b"a") == {"output_base64": "YQ=="}
    assert json_members(PNG) == {"output_base64": "iVBOR/8=", "content_type": "image/png", "filename": "café.png"}


@pytest.mark.parametrize(
    ("output", "name", "content"),
    [
        (PNG, "café.png", b"\x89PNG\xff"),
        (Media(b"a", "image/jpeg"), "job-1.jpg", b"a"),
        (Media(b"a", "a/b"), "job-1", b"a"),
        (b"a", "job-1.bin", b"a"),
        ({"y": 16}, "job-1.json", b'{"y": 16}'),
        ("text", "job-1.json", b"text"),
    ],
)
def test_into_a_folder_an_output_goes_under_its_own_name_or_that_of_its_job(
    tmp_path: Path, output: Any, name: str, content: bytes
) -> None:
    saved = save(output, tmp_path, "job-1")
    assert saved == tmp_path / name
    assert saved.read_bytes() == content


def test_an_output_with_files_is_shown_in_words_and_saved_as_a_folder(tmp_path: Path) -> None:
    output = {"label": "cat", "files": [PNG, PNG, Media(b"a", "image/jpeg")]}
    shown = '{"label": "cat", "files": [{"content_type": "image/png", "filename": "café.png", "bytes": 5}'
    assert readable(output).startswith(shown)
    assert json_members(output)["output"]["files"][2] == {"base64": "YQ==", "content_type": "image/jpeg", "filename": None}
    assert save(output, tmp_path, "job-1") == tmp_path
    kept = json.loads((tmp_path / "job-1.json").read_text())
    assert kept == {"label": "cat", "files": ["café.png", "job-1-1-café.png", "job-1-2.jpg"]}
    assert [(tmp_path / name).read_bytes() for name in kept["files"]] == [PNG.data, PNG.data, b"a"]


def test_a_name_that_the_model_chose_writes_over_nothing_and_a_given_one_does(tmp_path: Path) -> None:
    (tmp_path / "café.png").write_bytes(b"old")
    with pytest.raises(BadRequest, match="exists already"):
        save(PNG, tmp_path, "job-1")
    assert (tmp_path / "café.png").read_bytes() == b"old"
    assert save(PNG, tmp_path / "café.png", "job-1").read_bytes() == PNG.data


def test_a_file_that_cannot_be_written_says_how_to_get_the_output_after_all(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot be written") as caught:
        save(PNG, tmp_path / "absent" / "a.png", "job-1")
    assert caught.value.hint == "the output is kept; write it elsewhere: penstock jobs result job-1 -o FILE"
