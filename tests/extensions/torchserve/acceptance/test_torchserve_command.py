"""`penstock torchserve` on a store that the stock archiver packed, and the import that writes the same as a file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests import archives
from tests.acceptance.test_cli import COMMAND, Up, clean_environment
from tests.command import called_here

CONFIG = """
inference_address=http://127.0.0.1:0
management_address=http://127.0.0.1:0
metrics_address=http://127.0.0.1:0
grpc_inference_port=0
grpc_management_port=0
model_store=store
load_models=all
default_workers_per_model=1
number_of_netty_threads=4
disable_token_authorization=true
install_py_dep_per_model=true
"""
# It looks where TorchServe's workers look: its folder is the current one and on the path.
HANDLER = """
import json
import os

import beside


def handle(data, context):
    if data is None:
        return None
    names = sorted(os.listdir())
    return [{"got": row["body"], "beside": beside.VALUE, "here": "labels.json" in names} for row in data]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with config.properties and a store: a stock archive, and one that nobody can read."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "store").mkdir()
    (folder / "config.properties").write_text(CONFIG)
    (folder / "serve.py").write_text(HANDLER)
    (folder / "beside.py").write_text("VALUE = 7\n")
    (folder / "labels.json").write_text("{}")
    about = ("--model-name", "echo", "--version", "1.0", "--handler", "serve.py", "--extra-files", "beside.py,labels.json")
    archives.packed(folder / "store", *about, folder=folder)
    needs = archives.with_package(modelName="needs", handler="needs.py") | {"needs.py": f"import only_here\n{archives.HANDLER}"}
    archives.mar(folder / "store" / "needs.mar", needs)
    (folder / "store" / "cut.mar").write_bytes((folder / "store" / "echo.mar").read_bytes()[:-40])
    return folder


@pytest.fixture(scope="module")
def up(site: Path) -> Iterator[Up]:
    with (site / "up.log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, "torchserve", "--start", "--ncs", "--foreground", "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=site,
            env=clean_environment(),
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, (site / "up.log").read_text()
    running = Up(process, json.loads(line), site)
    yield running
    asked = called_here("torchserve", "--stop", cwd=site, env=clean_environment())
    assert asked.stdout == f"process {process.pid} finishes its batches and ends\n"
    process.communicate(timeout=60)
    assert process.returncode == 0, (site / "up.log").read_text()


def test_the_archives_of_the_store_are_served_where_torchserve_serves_them(up: Up) -> None:
    assert up.ready["models"] == ["echo", "needs"]
    answer = httpx2.post(f"{up.ready['url']}/predictions/echo/1.0", json={"a": [1]})
    assert (answer.status_code, answer.json()) == (200, {"got": {"a": [1]}, "beside": 7, "here": True})


def test_packages_that_an_archive_brings_along_are_installed_for_it_alone(up: Up) -> None:
    answer = httpx2.post(f"{up.ready['url']}/predictions/needs", json=1)
    assert (answer.status_code, answer.json()) == (200, {"rows": 1})
    assert '"archive_packages_installed"' in (up.folder / "up.log").read_text()


def test_what_is_not_as_it_was_is_printed_before_anything_starts(up: Up) -> None:
    lines = (up.folder / "up.log").read_text().splitlines()
    said = [line for line in lines if line.startswith("penstock torchserve: ")]
    assert any("ignored   number_of_netty_threads = 4" in line for line in said)
    assert any("refused   model = cut.mar" in line and "cannot be read" in line for line in said)


def test_stop_says_where_nothing_runs(site: Path) -> None:
    done = called_here("torchserve", "--stop", cwd=site / "store", env=clean_environment())
    assert (done.returncode, done.stdout.partition(" in ")[0]) == (0, "nothing runs")


def test_the_import_writes_what_the_check_accepts_and_says_what_becomes_of_each_setting(site: Path, tmp_path: Path) -> None:
    target = tmp_path / "penstock.toml"
    done = called_here("torchserve", "--write", str(target), cwd=site, env=clean_environment())
    assert done.returncode == 0, done.stderr
    assert "ignored   number_of_netty_threads = 4" in done.stdout
    checked = called_here("config", "--check", "-c", str(target), env=clean_environment())
    assert (checked.returncode, "echo" in checked.stdout) == (0, True), checked.stderr
    again = called_here("torchserve", "--write", str(target), cwd=site, env=clean_environment())
    assert again.returncode == 5
    assert "exists, and is left as it is" in again.stderr
    as_json = called_here("torchserve", "--write", "-", "--json", cwd=site, env=clean_environment())
    assert {one["key"] for one in json.loads(as_json.stdout)["report"]} >= {"model_store", "load_models", "model"}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.write_bytes(b"PK"), "cannot be read"),
        (lambda path: archives.mar(path, archives.files(handler="absent.py")), "its handler is 'absent.py'"),
        (lambda path: archives.mar(path, archives.files(serializedFile="w.pt")), "names the serializedFile 'w.pt'"),
        (lambda path: archives.mar(path, archives.files() | {"MAR-INF/MANIFEST.json": "{"}), "is not valid JSON"),
        (lambda path: archives.mar(path, archives.files() | {"../out.py": ""}), "outside the model's folder"),
        (lambda path: archives.mar(path, archives.files(config="continuousBatching: true")), "what penstock does not do"),
    ],
    ids=["truncated", "no handler", "no weights", "manifest", "zip slip", "refused setting"],
)
def test_an_archive_that_cannot_be_loaded_is_refused_before_anything_starts(tmp_path: Path, make: object, why: str) -> None:
    make(tmp_path / "bad.mar")  # type: ignore[operator]
    done = called_here("up", "bad.mar", cwd=tmp_path, env=clean_environment())
    assert done.returncode == 4
    assert why in done.stderr


def test_an_option_that_archives_do_not_have_is_a_fault_of_the_settings(tmp_path: Path) -> None:
    archives.mar(tmp_path / "noop.mar")
    (tmp_path / "penstock.toml").write_text('[models.noop]\nsource = "noop.mar"\noptions.service_envelop = "json"\n')
    done = called_here("config", "--check", cwd=tmp_path, env=clean_environment())
    assert done.returncode == 4
    assert "an archive has no option 'service_envelop'; did you mean service_envelope?" in done.stderr


def test_a_server_without_any_model_is_refused_unless_models_may_be_registered(tmp_path: Path) -> None:
    done = called_here("torchserve", "--model-store", str(tmp_path), "--models", "all", cwd=tmp_path, env=clean_environment())
    assert done.returncode == 4
    assert "no model is to be loaded" in done.stderr


def test_of_nothing_no_settings_are_written_and_it_says_what_to_name(tmp_path: Path) -> None:
    # Regression: an empty folder was written as settings without a model.
    done = called_here("torchserve", "--write", "penstock.toml", cwd=tmp_path, env=clean_environment())
    assert done.returncode == 4
    assert "there is nothing to write" in done.stderr
    assert "--ts-config and --model-store" in done.stderr
    assert list(tmp_path.iterdir()) == []
