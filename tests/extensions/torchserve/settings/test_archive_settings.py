"""What an archive says of its model are settings below those that a user writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.extensions.torchserve.settings import archives as archive_settings
from penstock.model_cache.entries import Entries
from penstock.settings.tables import Settings
from tests import archives

FAR = f"https://host.example/noop.mar#sha256={'0' * 64}"
CONFIG = "batchSize: 8\nmaxBatchDelay: 50\nresponseTimeout: 30\nuseVenv: true\n"


def settings(folder: Path, toml: str, *, need_files: bool = True, **env: str) -> Settings:
    (folder / "penstock.toml").write_text(toml)
    return Settings.load(folder / "penstock.toml", env, need_files=need_files)


@pytest.mark.parametrize("name", ["noop.mar", "noop.tar.gz", "folder"])
def test_an_archive_brings_its_version_its_batches_and_its_limits(tmp_path: Path, name: str) -> None:
    make = {"mar": archives.mar, "gz": archives.tgz}.get(name.rpartition(".")[2], archives.folder)
    make(tmp_path / "store" / name, archives.files(config=CONFIG, modelVersion="2.1"))
    found = settings(tmp_path, f'[models.noop]\nsource = "store/{name}"\n')
    [spec] = found.specs()
    assert (spec.version, spec.policy.max_batch_size, spec.policy.max_wait_s, spec.limits.max_run_s) == ("2.1", 8, 0.05, 30.0)
    assert spec.options == {"use_venv": True}
    assert spec.request_headers == ("*",)
    assert found.origin("models.noop.max_batch_size") == f"archive {tmp_path}/store/{name}"
    assert found.policy_left_open(spec) == frozenset()


def test_without_a_config_file_an_archive_has_what_torchserve_takes_for_granted(tmp_path: Path) -> None:
    archives.mar(tmp_path / "noop.mar")
    [spec] = settings(tmp_path, '[models.noop]\nsource = "noop.mar"\n').specs()
    assert (spec.version, spec.policy.max_batch_size, spec.policy.max_wait_s, spec.limits.max_run_s) == ("1.0", 1, 0.1, 120.0)


def test_what_a_user_writes_stands_over_the_archive(tmp_path: Path) -> None:
    archives.mar(tmp_path / "noop.mar", archives.files(config=CONFIG))
    toml = """
        [models.noop]
        source = "noop.mar"
        max_batch_size = 2
        version = "old"
        options = { use_venv = false, handler = "noop" }
    """
    [spec] = settings(tmp_path, toml, PENSTOCK_MODELS__NOOP__MAX_RUN_S="7").specs()
    assert (spec.version, spec.policy.max_batch_size, spec.policy.max_wait_s, spec.limits.max_run_s) == ("old", 2, 0.05, 7.0)
    assert spec.options == {"use_venv": False, "handler": "noop"}


def test_each_version_has_the_settings_of_its_own_archive(tmp_path: Path) -> None:
    archives.mar(tmp_path / "a.mar", archives.files(config=CONFIG))
    archives.mar(tmp_path / "b.mar", archives.files(config="batchSize: 4\n"))
    (tmp_path / "code.py").touch()
    toml = """
        [models.noop]
        source = "a.mar"
        max_wait_s = 0.2
        [models.noop.versions."2.0"]
        source = "b.mar"
        [models.noop.versions.3]
        source = "code.py"
        [models.noop.versions.4]
        slots = 2
    """
    specs = {spec.version: spec for spec in settings(tmp_path, toml).specs()}
    assert {name: spec.policy.max_batch_size for name, spec in specs.items()} == {"1.0": 8, "2.0": 4, "3": 8, "4": 8}
    assert {spec.policy.max_wait_s for spec in specs.values()} == {0.2}
    assert [specs[name].limits.max_run_s for name in ("1.0", "2.0", "3", "4")] == [30.0, 120.0, 75.0, 30.0]
    assert [specs[name].request_headers for name in ("2.0", "3", "4")] == [("*",), (), ("*",)]


def test_a_damaged_archive_says_nothing_and_a_missing_one_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "bad.mar").write_bytes(b"PK no more")
    [spec] = settings(tmp_path, '[models.bad]\nsource = "bad.mar"\n').specs()
    assert (spec.version, spec.policy.max_batch_size) == ("1", 1)
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, '[models.bad]\nsource = "bat.mar"\n')
    assert "did you mean bad.mar?" in refused.value.faults[0]


def test_a_folder_is_a_model_only_if_it_names_its_handler(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "serve.py").write_text(archives.HANDLER)
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, '[models.plain]\nsource = "./folder"\n')
    assert "is a folder; name a file in it" in refused.value.faults[0]
    [spec] = settings(tmp_path, '[models.plain]\nsource = "./folder"\noptions.handler = "serve.py"\n').specs()
    assert spec.version == "1.0"


def test_an_archive_that_is_added_while_a_worker_runs_says_what_nobody_wrote(tmp_path: Path) -> None:
    path = archives.mar(tmp_path / "noop.mar", archives.files(config=CONFIG))
    found = settings(tmp_path, '[models.known]\nsource = "code.py"\nmax_wait_s = 0.3\n', need_files=False)
    new = found.added_spec("new", "2", {"source": str(path), "max_run_s": 5, "options": {"service_envelope": "json"}})
    assert (new.version, new.policy.max_batch_size, new.policy.max_wait_s, new.limits.max_run_s) == ("2", 8, 0.05, 5.0)
    assert new.options == {"use_venv": True, "service_envelope": "json"}
    assert new.request_headers == ("*",)
    assert found.added_spec("known", "2", {"source": str(path)}).policy.max_wait_s == 0.3


def test_a_worker_that_looks_at_many_archives_again_reads_none_of_them_twice(tmp_path: Path) -> None:
    # Regression: with more than 64 of them every beat read each one.
    paths = [archives.mar(tmp_path / f"{number}.mar", archives.files(config=CONFIG)) for number in range(80)]
    found = settings(tmp_path, "", need_files=False)
    for number, path in enumerate(paths):
        found.added_spec(f"m{number}", "2", {"source": str(path)})
    before = archive_settings._kept_values.cache_info().misses
    for number, path in enumerate(paths):
        found.added_spec(f"m{number}", "2", {"source": str(path)})
    assert archive_settings._kept_values.cache_info().misses == before


def test_an_archive_from_elsewhere_says_what_it_has_once_it_is_in_the_cache(tmp_path: Path) -> None:
    toml = f'models_cache.dir = "cache"\n[models.noop]\nsource = "{FAR}"\ntrust_remote_code = true\n'
    [spec] = settings(tmp_path, toml).specs()
    assert (spec.policy.max_batch_size, spec.limits.max_run_s) == (1, 120.0)
    entries = Entries(tmp_path / "cache")
    entry = entries.begin("entry", FAR, "noop.mar", 1)
    archives.mar(entry.path, archives.files(config=CONFIG))
    entries.remember(FAR, entries.complete(entry))
    [spec] = settings(tmp_path, toml).specs()
    assert (spec.version, spec.policy.max_batch_size, spec.limits.max_run_s) == ("1.0", 8, 30.0)
