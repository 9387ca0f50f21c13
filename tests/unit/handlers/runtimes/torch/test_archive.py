from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.torch.archive import FileKind, file_kind, package_target


def archive(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, text in members.items():
            file.writestr(name.replace("__", "/"), text)
    return path


@pytest.mark.parametrize(
    ("name", "member", "kind"),
    [
        ("a.pt2", "a__models__model.json", FileKind.EXPORTED),
        ("a.pt2", "serialized_exported_program.json", FileKind.EXPORTED),
        ("a.pt2", "a__data__aotinductor__model__x.so", FileKind.PACKAGE),
        ("a.pt", "a__constants.pkl", FileKind.SCRIPT),
        ("a.ts", "a__constants.pkl", FileKind.SCRIPT),
        ("a.pth", "a__data.pkl", FileKind.WEIGHTS),
    ],
)
def test_a_file_is_told_from_what_its_archive_holds(tmp_path: Path, name: str, member: str, kind: FileKind) -> None:
    assert file_kind(archive(tmp_path / name, **{member: ""})) is kind


def test_a_file_that_is_no_archive_can_only_hold_weights(tmp_path: Path) -> None:
    (tmp_path / "old.pt").write_bytes(b"\x80\x02")
    assert file_kind(tmp_path / "old.pt") is FileKind.WEIGHTS
    assert file_kind(tmp_path / "not-there.safetensors") is FileKind.WEIGHTS


@pytest.mark.parametrize("content", [b"garbage", b""])
def test_a_pt2_that_is_neither_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.pt2").write_bytes(content)
    with pytest.raises(HandlerLoadError, match=r"bad\.pt2 holds neither"):
        file_kind(tmp_path / "bad.pt2")


def test_a_package_says_what_it_was_compiled_for(tmp_path: Path) -> None:
    told = {"AOTI_DEVICE_KEY": "cuda"}
    path = archive(tmp_path / "a.pt2", **{"a__data__aotinductor__model__x.wrapper_metadata.json": json.dumps(told)})
    assert package_target(path) == told
    assert package_target(archive(tmp_path / "b.pt2", x="")) == {}
