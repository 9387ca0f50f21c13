"""What a model needs to be installed: read from the settings, and compared with the installed distributions.

The child does this before it imports the model's code, so that one message names all that is missing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from penstock.errors import HandlerLoadError

_FILE = ("-r ", "--requirement ")


def check_requirements(lines: Sequence[str]) -> None:
    """`lines` are those of a requirements file; `-r PATH` stands for the lines of another one.

    Raises `HandlerLoadError` with everything that is missing and the command that installs it.
    """
    if lacking := missing_packages(lines):
        raise HandlerLoadError(
            f"the model needs what is not installed here: {in_words(lacking)}; run: {install_line(lacking)}. "
            "Its requirements stand in its table of penstock.toml"
        )


def missing_packages(lines: Sequence[str]) -> dict[str, str]:
    """What is missing, as pip takes it, and why. Raises `HandlerLoadError` for a file that cannot be read."""
    return dict(lack for line in lines for lack in _lacking_of(line, Path()))


def missing_of_text(text: str, name: str) -> dict[str, str]:
    """As `missing_packages`, for the text of a requirements file called `name` whose folder is not here: other files that it
    names are left out.
    """
    lines = (line for line in text.replace("\\\n", " ").splitlines() if not line.strip().startswith(_FILE))
    return dict(lack for line in lines for lack in _lacking_of_line(line, Path(name)))


def in_words(lacking: Mapping[str, str]) -> str:
    return ", ".join(f"{wanted} ({why})" for wanted, why in lacking.items())


def install_line(lacking: Iterable[str]) -> str:
    """The one command that installs all of them."""
    return f"pip install {shlex.join(lacking)}"


def _lacking_of(line: str, folder: Path) -> Iterator[tuple[str, str]]:
    """What is missing for one line, and why."""
    if line.startswith(_FILE):
        yield from _lacking_of_file(folder / line.partition(" ")[2].strip())
    elif not _is_for_pip_alone(line):
        # What follows two dashes are options of pip for this line, such as the sums of its files.
        yield from _lacking(Requirement(line.partition(" --")[0]))


def _lacking_of_file(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise HandlerLoadError(f"the model's requirements {path} cannot be read: {why}; check the path") from error
    for line in text.replace("\\\n", " ").splitlines():
        yield from _lacking_of_line(line, path)


def _lacking_of_line(line: str, path: Path) -> Iterator[tuple[str, str]]:
    # A `#` within a word belongs to a URL.
    wanted = f" {line}".partition(" #")[0].strip()
    try:
        yield from _lacking_of(wanted, path.parent)
    except InvalidRequirement as error:
        raise HandlerLoadError(
            f"{path}: {wanted!r} is no requirement; write a line such as pillow>=10 ({str(error).splitlines()[0]})"
        ) from error


def _is_for_pip_alone(line: str) -> bool:
    """Whether the line says how or from where to install, which no installed distribution shows."""
    is_place = "://" in line.partition(" @ ")[0] or line.startswith((".", "/")) or line.endswith((".whl", ".tar.gz"))
    return not line or line.startswith("-") or (is_place and " @ " not in line)


def _lacking(need: Requirement, extra: str = "", seen: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """What of `need` is missing: the distribution, its release, or what its extras bring."""
    if str(need) in seen or not _applies(need, extra):
        return
    try:
        installed = distribution(need.name)
    except PackageNotFoundError:
        yield _plain(need), "not installed"
        return
    if not need.specifier.contains(installed.version, prereleases=True):
        yield _plain(need), f"{installed.version} is installed"
        return
    for name in sorted(need.extras):
        for inner in _brought_by(installed, name):
            yield from _lacking(inner, name, seen | {str(need)})


def _applies(need: Requirement, extra: str) -> bool:
    return need.marker is None or need.marker.evaluate({"extra": extra})


def _brought_by(installed: Distribution, extra: str) -> list[Requirement]:
    """What the extra adds to what the distribution itself needs."""
    return [need for need in map(Requirement, installed.requires or ()) if _applies(need, extra) and not _applies(need, "")]


def _plain(need: Requirement) -> str:
    """The requirement without its condition, as pip takes it on the command line."""
    extras = f"[{','.join(sorted(need.extras))}]" if need.extras else ""
    return f"{need.name}{extras}{need.specifier}" if need.url is None else f"{need.name}{extras} @ {need.url}"
