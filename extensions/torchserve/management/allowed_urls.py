"""From which URLs archives may be registered, and which of them may lie at addresses that are not public. Pure."""

# D103: docs/design/protocols.md
from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote

from penstock.errors import InvalidInput
from penstock.extensions.torchserve.archives.kinds import ENDINGS, is_archive_file
from penstock.extensions.torchserve.gateway.errors import TorchServeError, bad_request
from penstock.outbound.urls import MAX_URL_CHARS, CheckedUrl, parse_url

_WORKFLOW = ".war"
_ENDINGS = tuple(ending for ending in ENDINGS if ending != _WORKFLOW)
_REMOTE = ("http://", "https://")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}")
# What the host of a URL is written with; in a pattern a dot stands for any letter, and everybody writes it for a dot.
_SPELLED_HOST = re.compile(r"\^?(https?)://((?:[A-Za-z0-9.:-]|\\\.)+)/")


def is_remote(url: str) -> bool:
    return url.lower().startswith(_REMOTE)


def is_scheme(url: str) -> bool:
    """Whether this is a URL of another kind, such as file:// or s3://."""
    return "://" in url


def allowed_url(url: str, patterns: Sequence[re.Pattern[str]]) -> tuple[CheckedUrl, bool]:
    """The URL, and whether its host may have any address: a pattern spells the host out. Raises `TorchServeError`.

    Of the hosts that a pattern leaves open only those are called that have public addresses: whoever may name a URL could
    otherwise reach what only this machine reaches.
    """
    if len(url) > MAX_URL_CHARS:
        raise not_allowed(url)
    matching = [pattern.pattern for pattern in patterns if pattern.fullmatch(url)]
    if not matching:
        raise not_allowed(url)
    try:
        found = parse_url(url)
    except InvalidInput as error:
        raise bad_request(f"{error.message}: {url[:200]}") from error
    return found, any(_spells(pattern, found) for pattern in matching)


def not_allowed(url: str) -> TorchServeError:
    return TorchServeError(404, "ModelNotFoundException", f"Given URL {url[:200]} does not match any allowed URL(s)")


def file_name(url: CheckedUrl) -> str:
    """The name under which an archive is kept. Raises `TorchServeError` unless the path of the URL ends with one."""
    name = unquote(PurePosixPath(url.target.partition("?")[0]).name)
    if not _FILE_NAME.fullmatch(name) or not is_archive_file(name) or is_workflow(name):
        raise bad_request(f"The path of the URL {url} must end with the name of an archive: {', '.join(_ENDINGS)}.")
    return name


def is_workflow(name: str) -> bool:
    return name.lower().endswith(_WORKFLOW)


def _spells(pattern: str, url: CheckedUrl) -> bool:
    found = _SPELLED_HOST.match(pattern)
    return found is not None and (found[1], found[2].replace("\\.", ".").lower()) == (url.scheme, url.netloc)
