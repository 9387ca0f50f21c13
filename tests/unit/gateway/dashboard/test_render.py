"""Pages load only our files and unchanged vendored files, nothing from other hosts."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from importlib.resources.abc import Traversable

import pytest

from penstock.broker.backlog import SlotCapacity
from penstock.errors import NotFound
from penstock.gateway.dashboard.render import HEADERS, Renderer, asset, asset_address
from penstock.gateway.dashboard.rows.machine_rows import version_rows
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.model_spec import LearnedCalls, ModelInfo, SlotInfo, WorkerInfo
from penstock.rollout import CHANGEABLE_LIMITS
from tests.markdown import ROOT

FOLDER = resources.files("penstock.gateway.dashboard")
STATIC = FOLDER / "static"
NOTES = (STATIC / "THIRD_PARTY.md").read_text("utf-8")
DIGESTS = re.findall(r"^\| `([\w.-]+)` \| `([0-9a-f]{64})` \|$", NOTES, re.MULTILINE)


def test_third_party_files_are_those_that_were_taken_and_their_licences_lie_beside_them() -> None:
    assert {name for name, _ in DIGESTS} == {"htmx.min.js", "htmx-sse.min.js", "swagger-ui-bundle.js", "swagger-ui.css"}
    for name, digest in DIGESTS:
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest, name
    for licence in set(re.findall(r"`([\w-]+\.LICENSE\.txt)`", NOTES)):
        assert len((STATIC / licence).read_text("utf-8")) > 400


def test_every_file_that_is_served_is_ours_or_named_among_the_third_parties() -> None:
    served = {file.name for file in STATIC.iterdir() if file.name.endswith((".js", ".css", ".svg"))}
    assert served - {name for name, _ in DIGESTS} == {"penstock.js", "docs.js", "penstock.css", "icon.svg"}


@pytest.mark.parametrize(
    "name", ["../render.py", "THIRD_PARTY.md", "htmx.LICENSE.txt", "swagger-ui.NOTICE.txt", "", "nothing.js", "%2e%2e/x.js"]
)
def test_nothing_else_is_served(name: str) -> None:
    with pytest.raises(NotFound):
        asset(name)


def test_a_file_is_kept_by_browsers_under_a_name_that_changes_with_it() -> None:
    answer = asset("penstock.css")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert re.fullmatch(r"penstock\.css\?v=[0-9a-f]{12}", asset_address("penstock.css"))


OF_EXTENSIONS = (ROOT / "extensions").glob("*/gateway/templates/*")
OURS = [*(FOLDER / "templates").iterdir(), *OF_EXTENSIONS, STATIC / "penstock.css", STATIC / "penstock.js", STATIC / "docs.js"]


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.name)
def test_our_own_files_name_no_other_host_and_hold_nothing_that_the_policy_forbids(file: Traversable) -> None:
    text = file.read_text("utf-8")
    assert not re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", text)
    assert not re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=|javascript:|@import|\|\s*safe\b|autoescape", text)


async def test_the_page_of_a_model_shows_what_its_workers_have_learned_of_calls() -> None:
    version = VersionEntry("1", None, None, SlotCapacity(1))
    entry = ModelEntry(ModelInfo("texts"), version, {"1": version})
    calls = LearnedCalls("padded cost", ((64.0, 0.002), (1_234_567.0, 1.5)), 3.5)
    workers = [WorkerInfo("w", "here", 1, 0.0, (SlotInfo("texts", "1", "ready", calls=calls),))]
    renderer = Renderer("", keyed=False)
    await renderer.load()
    values = {
        "model": entry,
        "versions": version_rows(entry, workers),
        "row": None,
        "rollout": None,
        "sections": [],
        "sample": "4",
        "limits": CHANGEABLE_LIMITS,
    }
    html = renderer.html("model.html", {**values, "here": "queues", "caller": None, "manages": True, "keyed": False})
    assert "3.5 items each on average, chosen by padded cost" in html
    assert '<td class="num">1,234,567</td><td class="num">1.5 s</td>' in html


def test_the_policy_allows_no_inline_code_and_no_frame() -> None:
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} <= set(policy.split("; "))


async def test_what_a_template_is_given_is_text_whatever_it_says() -> None:
    renderer = Renderer("/p", keyed=False)
    await renderer.load()
    bad = "\"><script>alert(1)</script>'"
    html = renderer.html("_refusal.html", {"problem": type("P", (), {"status": 404}), "error": NotFound(bad, hint=bad)})
    assert "<script>" not in html
    assert renderer.url("/ui/jobs/a b", model='x"&y', empty="") == "/p/ui/jobs/a%20b?model=x%22%26y"
