"""Extensions are found by their entry points, and declare their parts without importing them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.extension import Extension, installed, load_part
from tests.house import ROOT


def test_every_folder_of_extensions_is_installed_under_its_name() -> None:
    folders = sorted(path.parent.name for path in (ROOT / "extensions").glob("*/__init__.py"))
    assert [extension.name for extension in installed() if extension.name in folders] == folders


def test_a_declaration_imports_no_part_of_any_extension() -> None:
    program = "from penstock.extension import installed; installed(); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.startswith("penstock.extensions.")}
    assert ours == {f"penstock.extensions.{extension.name}" for extension in installed()}


DECLARED = "from penstock.extension import Extension\nextension = Extension('mine')\n"


def installed_with(folder: Path, code: str, *packages: str) -> subprocess.CompletedProcess[str]:
    """What a new process says of its extensions, where each of these packages brings the extension `mine`."""
    (folder / "mine_code.py").write_text(code)
    for package in packages:
        (info := folder / f"{package}-1.0.dist-info").mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[penstock.extensions]\nmine = mine_code:extension\n")
    program = "from penstock.extension import installed\nfor one in installed(): print(one.name)"
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=env)


def test_an_extension_of_another_package_is_found_among_ours(tmp_path: Path) -> None:
    done = installed_with(tmp_path, DECLARED, "elsewhere")
    assert done.stdout.split() == sorted([*(extension.name for extension in installed()), "mine"])


@pytest.mark.parametrize(
    ("code", "packages", "said"),
    [
        (
            "import nothing_of_the_kind",
            ["elsewhere"],
            "package elsewhere cannot be imported from mine_code:extension: ModuleNot",
        ),
        ("1 / 0", ["elsewhere"], "package elsewhere cannot be imported from mine_code:extension: ZeroDivisionError"),
        ("", ["elsewhere"], "package elsewhere cannot be imported from mine_code:extension: AttributeError"),
        (DECLARED.replace("mine", "other"), ["elsewhere"], "mine_code:extension of the package elsewhere is not an Extension"),
        (DECLARED, ["elsewhere", "further"], "two packages bring the extension mine: elsewhere, further"),
    ],
    ids=["import", "fault", "attribute", "name", "twice"],
)
def test_an_extension_that_cannot_be_used_is_named_with_its_package(
    tmp_path: Path, code: str, packages: list[str], said: str
) -> None:
    done = installed_with(tmp_path, code, *packages)
    assert said in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("penstock.errors.ConfigError:")


def test_a_checkout_that_is_only_on_the_path_is_refused_with_what_to_do(tmp_path: Path) -> None:
    # Regression: such an environment served without webhooks, and took their settings for misspelt ones.
    (tmp_path / "penstock").symlink_to(ROOT / "src" / "penstock")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from penstock.extension import ConfigError, installed\n"
        "try: installed()\nexcept ConfigError as error: print(error.message, error.hint)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert "no entry point here: autoscaling, " in done.stdout
    assert "pip install -e ." in done.stdout
    assert "penstock-inference" in done.stdout


def test_a_part_of_another_package_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(ConfigError, match="nothing_of_the_kind:gateway, a part of an extension"):
        load_part("nothing_of_the_kind:gateway")


@pytest.mark.parametrize("module", ["penstock.gateway", "penstock.workers", "penstock.runs", "penstock"])
def test_a_process_says_of_which_package_the_functions_are_missing(tmp_path: Path, module: str) -> None:
    (tmp_path / "mine_lua").mkdir()
    (tmp_path / "mine_lua" / "__init__.py").touch()
    installed_with(tmp_path, DECLARED.replace("('mine')", "('mine', functions='mine_lua:functions')"), "elsewhere")
    verb = ["store", "load", "--redis-url", "redis://127.0.0.1:1"] if module == "penstock" else []
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PENSTOCK_REDIS_URL": "redis://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-m", module, *verb], capture_output=True, text=True, check=False, env=env, cwd=tmp_path, timeout=60
    )
    said = done.stdout + done.stderr
    assert "extension 'mine' declares functions in mine_lua:functions, where no Lua file is installed" in said
    assert (done.returncode != 0, "Traceback" in said) == (True, False)


def test_the_name_of_an_extension_with_functions_is_one_in_lua() -> None:
    with pytest.raises(ConfigError, match="identifier"):
        Extension("my-own", functions="my_own:functions")


def test_a_part_is_loaded_by_its_name() -> None:
    assert load_part("penstock.extension:Extension") is Extension


def test_a_part_without_an_attribute_is_refused() -> None:
    with pytest.raises(ConfigError, match="module:attribute"):
        Extension("mine", settings={"mine": "my_package.settings"})
    with pytest.raises(ConfigError, match="module:attribute"):
        Extension("mine", worker="my_package.worker")
