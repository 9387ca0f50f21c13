from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.ops.config import check_settings, rows_of
from penstock.errors import ConfigError
from penstock.settings.tables import Settings
from penstock.words import MASK

SETTINGS = """
[models.mine]
source = "mine.py:Mine"

[models.mine.options]
api_key = "sk-secret"
threshold = 0.5
fast = true
places = ["https://me:secret@host"]

[models.mine.options.login]
user = "secret"

[models.other]
source = "other.py:Other"
default_version = "2"

[models.other.versions.2]
source = "other2.py:Other"
options = { token = "secret" }

[models.file]
source = "net.onnx"
task = "image-classification"
options = { labels = "labels.txt" }
"""


def shown(tmp_path: Path, **env: str) -> dict[str, object]:
    (tmp_path / "penstock.toml").write_text(SETTINGS)
    settings = Settings.load(tmp_path / "penstock.toml", {"PENSTOCK_MODELS__OTHER__SOURCE": "other.py:Other", **env})
    return {name: value for name, value, _ in rows_of(settings)}


def test_options_of_the_users_code_that_may_be_secrets_are_not_printed(tmp_path: Path) -> None:
    rows = shown(tmp_path)
    assert "secret" not in str(rows)
    assert rows["models.mine.options.api_key"] == MASK
    assert rows["models.mine.options.login.user"] == MASK
    assert rows["models.other.versions.2.options.token"] == MASK
    assert (rows["models.mine.options.threshold"], rows["models.mine.options.fast"]) == (0.5, True)


def test_options_of_model_files_are_known_and_printed(tmp_path: Path) -> None:
    assert shown(tmp_path)["models.file.options.labels"] == "labels.txt"


@pytest.mark.parametrize("url", ["redis://me:secret@host:1/0", "redis+sentinel://host/main?sentinel_password=secret&db=1"])
def test_passwords_of_the_store_are_not_printed(tmp_path: Path, url: str) -> None:
    assert "secret" not in str(shown(tmp_path, PENSTOCK_REDIS_URL=url))


def test_the_check_names_packages_that_are_missing_and_the_command_that_installs_them(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    file = tmp_path / "penstock.toml"
    file.write_text('[models.a]\nsource = "a.py"\nrequirements = ["absent-one>=2"]\n')
    with pytest.raises(ConfigError, match=r"needs absent-one>=2 \(not installed\)") as raised:
        check_settings(file, as_json=False)
    assert raised.value.hint == "pip install 'absent-one>=2'"
    file.write_text('[models.a]\nsource = "a.py"\nrequirements = ["pytest"]\n')
    check_settings(file, as_json=False)


def test_a_check_where_nothing_is_declared_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: in a wrong folder `penstock config --check` said `ok: 0 models`."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="nothing to check"):
        check_settings(None, as_json=False)
    (tmp_path / "penstock.toml").write_text("[gateway]\nport = 0\n")
    check_settings(None, as_json=False)
