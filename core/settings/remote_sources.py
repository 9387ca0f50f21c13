"""Sources of models that lie elsewhere, as they are written: `hf://org/name@revision/file`, `s3://bucket/key`, `https://...`.

Pure: nothing here asks a network. Faults are sentences that say what to write instead.
"""

# D76: docs/design/runtimes.md

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from urllib.parse import quote, unquote, urlsplit

from penstock.errors import ConfigError
from penstock.settings.keys import is_loopback

FORMS = "hf://org/name[@revision][/file], s3://bucket/file or s3://bucket/folder/, https://host/file#sha256=..."
# Files that run code when they are loaded (docs/reference/runtimes.md, "What a file can do").
CODE = frozenset({".py", ".pt2", ".plan", ".engine", ".mar", ".gz", ".tgz"})
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REVISION = re.compile(r"[0-9a-f]{16}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,62}")
_OBJECT = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """`location`: the repository `org/name`, the bucket, or the URL without its fragment. `file`: the path within it; a path
    that ends in "/", or none, is a folder in which the model's file is looked for. `sha256` is that of the file.

    `revision`: a commit, branch or tag of a repository; of a bucket the 16 digits that stand for the objects as they were when
    they were first fetched. `name`: the class or function in a file of code.
    """

    scheme: str
    location: str
    revision: str = ""
    file: str = ""
    sha256: str = ""
    name: str = ""

    @property
    def is_fixed(self) -> bool:
        """Whether this source always means the same bytes. In a repository a sum holds for one file only."""
        if self.scheme == "hf":
            return bool(_COMMIT.fullmatch(self.revision))
        return bool(self.sha256 or self.revision)

    @property
    def is_folder(self) -> bool:
        return not self.file or self.file.endswith("/")

    def __str__(self) -> str:
        """The source as settings name it. The query of a URL is left out, because it may hold a key."""
        if self.scheme == "hf":
            at = f"@{quote(self.revision, safe='')}" if self.revision else ""
            text = f"hf://{self.location}{at}{'/' + self.file if self.file else ''}"
        else:
            text = f"s3://{self.location}/{self.file}" if self.scheme == "s3" else self.location.partition("?")[0]
        mark = f"#sha256={self.sha256}" if self.sha256 else ""
        seen = f"#revision={self.revision}" if self.scheme == "s3" and self.revision and not mark else ""
        return text + (f":{self.name}" if self.name else "") + mark + seen


def is_remote(source: str) -> bool:
    return "://" in source


def read_source(text: str) -> RemoteSource:
    """The parts of a source with a scheme. Raises `ConfigError` that says what to write."""
    scheme, _, rest = text.partition("://")
    body, _, mark = rest.partition("#")
    named = _OBJECT.fullmatch(body)
    body, name = (named[1], named[2]) if named else (body, "")
    if scheme not in _READERS:
        raise ConfigError(f"{scheme}:// is no place that models are fetched from; write {FORMS}, or the path of a file here")
    source = replace(_READERS[scheme](scheme, body), name=name)
    _check_path(source)
    return _marked(source, mark)


def source_fault(text: str, *, trust_remote_code: bool) -> str:
    """Why this source cannot be used, and what to write; empty if it can, and for a source that is no address."""
    if not is_remote(text):
        return ""
    try:
        source = read_source(text)
    except ConfigError as error:
        return error.message
    return "" if source.is_folder else code_fault(source, source.file, trust_remote_code=trust_remote_code)


def code_fault(source: RemoteSource, file: str, *, trust_remote_code: bool) -> str:
    """Why `file` of this source may not be loaded: it is code, and no setting trusts it; empty if it may be loaded."""
    if PurePosixPath(file).suffix.lower() not in CODE:
        return ""
    if not trust_remote_code:
        return (
            f"{file} of {source} runs code when it is loaded; read it first, then write trust_remote_code = true "
            "beside a source whose revision is fixed, or copy the file here and name its path"
        )
    if source.is_fixed:
        return ""
    return f"trust_remote_code needs a source that cannot change: {_fixed_form(source)}"


def pinned(source: RemoteSource, kept: str) -> RemoteSource:
    """The source at the revision that `kept` names, if `kept` is the same location; else the source as it is.

    `kept` is what the workers announced when they first loaded the version.
    """
    if source.is_fixed or not is_remote(kept):
        return source
    try:
        known = read_source(kept)
    except ConfigError:
        return source
    # For a repository the chosen file is announced; the revision of a bucket's folder means the whole folder.
    is_chosen = source.scheme == "hf" and source.is_folder and known.file.startswith(source.file)
    is_same = (known.scheme, known.location) == (source.scheme, source.location) and (is_chosen or known.file == source.file)
    return replace(source, revision=known.revision, file=known.file) if is_same else source


def remote_name(source: RemoteSource) -> str:
    """The default name of a model from this source: after its file, else its folder or repository."""
    if not source.is_folder:
        return PurePosixPath(source.file).stem
    return PurePosixPath(source.file or source.location).name


def _hub(scheme: str, body: str) -> RemoteSource:
    owner, _, rest = body.partition("/")
    head, _, file = rest.partition("/")
    name, _, revision = head.partition("@")
    location = f"{owner}/{name}"
    if not _REPOSITORY.fullmatch(location) or (head.endswith("@")):
        raise ConfigError(f"hf://{body} names no repository; write hf://org/name, hf://org/name@revision or one with /file")
    return RemoteSource(scheme, location, unquote(revision), file)


def _bucket(scheme: str, body: str) -> RemoteSource:
    location, _, file = body.partition("/")
    if not _BUCKET.fullmatch(location) or not file:
        raise ConfigError(
            f"s3://{body} names no object; write s3://bucket/path/model.onnx, or s3://bucket/folder/ with a / at its end"
        )
    return RemoteSource(scheme, location, file=file)


def _url(scheme: str, body: str) -> RemoteSource:
    url = f"{scheme}://{body}"
    parts = urlsplit(url)
    if scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ConfigError(f"http:// is for this machine only, since others can change what it brings; write https://{body}")
    if "@" in parts.netloc:
        raise ConfigError("a source may hold no user name and password; put the file where a token in the environment opens it")
    file = unquote(PurePosixPath(parts.path).name)
    if not parts.hostname or not file or parts.path.endswith("/"):
        raise ConfigError(f"{scheme}://{parts.netloc}{parts.path} names no file; write https://host/path/model.onnx#sha256=...")
    return RemoteSource("https", url, file=file)


_READERS = {"hf": _hub, "s3": _bucket, "https": _url, "http": _url}


def _check_path(source: RemoteSource) -> None:
    if not is_safe_path(source.file.rstrip("/")) and source.file:
        raise ConfigError(f"{source}: the path must name a file below the place, without .. and backslashes")


def is_safe_path(path: str) -> bool:
    """Whether a file of this relative path lies below the folder that it is put into."""
    parts = path.split("/")
    return bool(path) and "\\" not in path and "\0" not in path and not any(part in ("", ".", "..") for part in parts)


def _marked(source: RemoteSource, mark: str) -> RemoteSource:
    kind, _, value = mark.partition("=")
    value = value.lower()
    if kind == "sha256" and _SHA256.fullmatch(value) and not source.is_folder:
        return replace(source, sha256=value)
    if kind == "revision" and source.scheme == "s3" and _REVISION.fullmatch(value):
        return replace(source, revision=value)
    if mark:
        raise ConfigError(f"{source}: after # write sha256= and the 64 hexadecimal digits that `sha256sum` prints for the file")
    if source.scheme == "https":
        raise ConfigError(
            f"{source} has no checksum, so a replaced file would go unnoticed; write {source}#sha256=..., "
            "with the 64 digits that `sha256sum` prints for the file"
        )
    return source


def _fixed_form(source: RemoteSource) -> str:
    if source.scheme == "hf":
        return f"write the 40 digits of the commit, as in hf://{source.location}@<commit>/{source.file}"
    return f"write {source}#sha256=... with the 64 digits that `sha256sum` prints for the file"
