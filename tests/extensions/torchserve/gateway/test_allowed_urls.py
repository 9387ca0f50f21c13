"""From which URLs archives may come, and which hosts may lie at addresses that are not public."""

from __future__ import annotations

import re

import pytest

from penstock.extensions.torchserve.gateway.errors import TorchServeError
from penstock.extensions.torchserve.management.allowed_urls import allowed_url, file_name, is_remote
from penstock.outbound.urls import parse_url

URL = "http://10.0.0.5:8000/store/m.mar"


@pytest.mark.parametrize("patterns", [(), ("http://10.0.0.5:8000/store/",), ("https://.*",), (".*/other/.*",)])
def test_a_url_that_no_pattern_matches_as_a_whole_is_refused(patterns: tuple[str, ...]) -> None:
    with pytest.raises(TorchServeError) as refused:
        allowed_url(URL, [re.compile(pattern) for pattern in patterns])
    assert (refused.value.status, refused.value.name) == (404, "ModelNotFoundException")
    assert refused.value.message == f"Given URL {URL} does not match any allowed URL(s)"


@pytest.mark.parametrize(
    ("pattern", "spelled"),
    [
        (r"http://10\.0\.0\.5:8000/.*", True),
        (r"^http://10.0.0.5:8000/.*", True),
        (r"http(s)?://.*", False),
        (r"http://.*", False),
        (r"http://10.*", False),
        (r"http://[0-9.]+:8000/.*", False),
        (r"http://10.0.0.[5]:8000/.*", False),
        (r"http://10\.0\.0\.5:8000.*", False),
    ],
)
def test_only_a_host_that_a_pattern_spells_may_have_any_address(pattern: str, spelled: bool) -> None:
    assert allowed_url(URL, [re.compile(pattern)])[1] is spelled


def test_what_is_matched_but_is_no_plain_url_is_a_bad_request() -> None:
    for url in ("http://user:word@h/m.mar", "http://h/a b.mar", "http:///m.mar"):
        with pytest.raises(TorchServeError) as refused:
            allowed_url(url, [re.compile(".*")])
        assert refused.value.status == 400


@pytest.mark.parametrize("path", ["m.mar", "m.tar.gz", "M-1_2+x.tgz", "m.mar?signature=a/b"])
def test_the_archive_has_the_name_that_ends_the_path(path: str) -> None:
    assert file_name(parse_url(f"http://h/a/{path}")) == path.partition("?")[0]


@pytest.mark.parametrize("path", ["", "m", "m.py", "m.zip", ".mar", "a%2Fb.mar", "%2e%2e.mar", "-m.mar", "m%00.mar", "a/.mar"])
def test_a_path_that_ends_with_no_archive_is_refused(path: str) -> None:
    with pytest.raises((TorchServeError, Exception)) as refused:
        file_name(parse_url(f"http://h/a/{path}"))
    assert getattr(refused.value, "status", 400) == 400


def test_only_http_is_remote() -> None:
    assert is_remote("HTTPS://h/m.mar")
    assert not any(map(is_remote, ("m.mar", "file:///m.mar", "s3://b/m.mar")))
