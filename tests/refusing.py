"""Programs that run as if packages were not installed, for what is said and done without them.

An environment without the packages would say the same and take minutes; `make release-check` makes one.
"""

from __future__ import annotations

from collections.abc import Iterable

# `find_spec` of the machinery asks each finder; the answer must be None there, and an error where the module is imported.
_FINDER = """
import importlib.util, sys

REFUSED = frozenset({refused!r})

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def find_spec(name, package=None, find=importlib.util.find_spec):
    return None if name.partition(".")[0] in REFUSED else find(name, package)

sys.meta_path.insert(0, Refuse())
importlib.util.find_spec = find_spec
"""


def refusing(modules: Iterable[str], program: str) -> str:
    """The program, in which these modules cannot be imported and are not found."""
    return f"{_FINDER.format(refused=sorted(modules))}\n{program}"


def command_without(modules: Iterable[str], *arguments: str) -> str:
    """A program that calls `penstock` where these modules are not installed."""
    call = f"sys.argv = ['penstock', *{[*arguments]!r}]\nfrom penstock.cli.entry import main\nmain()"
    return refusing(modules, call)
