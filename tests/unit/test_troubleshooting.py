"""docs/production/troubleshooting.md: every problem of the gateway and every exit code of the command has its heading."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

from penstock.cli import exits
from penstock.errors import PenstockError
from penstock.gateway.asgi.problems import FAILURE_STATUS, STATUS, titles
from penstock.gateway.telemetry import problem_pages
from tests.markdown import anchors
from tests.pages import problems_page

PACKAGES = ("broker", "gateway")
# Of no request: settings are read before one comes, and the others are bases that nothing raises.
NOT_ANSWERED = {"config_error", "caller_error", "capacity", "error"}


def errors_of(base: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from errors_of(kind)


@pytest.fixture(scope="module")
def raised() -> list[type[PenstockError]]:
    """The errors of a gateway and of all that it may load."""
    for package in PACKAGES:
        found = importlib.import_module(f"penstock.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    packages = ("penstock.errors", "penstock.extensions.openai.embedding", *(f"penstock.{name}." for name in PACKAGES))
    return [kind for kind in errors_of(PenstockError) if kind.__module__.startswith(packages)]


def test_every_error_that_a_gateway_answers_has_a_title_and_a_page(raised: list[type[PenstockError]]) -> None:
    kinds = {error.kind for error in raised} - NOT_ANSWERED
    assert len(kinds) > 30
    assert kinds - set(titles()) == set()
    assert set(FAILURE_STATUS) - set(titles()) == set()
    assert set(problem_pages.explanations()) == set(titles())


def test_the_page_names_the_status_that_an_error_is_answered_with(raised: list[type[PenstockError]]) -> None:
    wrong = []
    for error in raised:
        explained = problem_pages.explanations().get(error.kind)
        status = next(STATUS[kind] for kind in error.__mro__ if kind in STATUS)
        # Errors of models are answered by how the job was asked for; of these the table of failures decides.
        if explained and status < 500 and error.kind not in FAILURE_STATUS and str(status) not in explained.status:
            wrong.append((error.kind, status, explained.status))
    wrong += [
        (code, status, problem_pages.explanations()[code].status)
        for code, status in FAILURE_STATUS.items()
        if code in titles() and str(status) not in problem_pages.explanations()[code].status
    ]
    assert wrong == []


def test_the_page_is_what_the_gateway_serves_and_has_the_anchors_that_it_names() -> None:
    page = problems_page.PAGE.read_text("utf-8")
    assert problems_page.rewritten(page) == page, "run `make reference`"
    headings = anchors(problems_page.PAGE)
    assert {problem_pages.anchor(code) for code in titles()} <= headings
    assert f"docs/production/{problems_page.PAGE.name}" == problem_pages.MANUAL


def test_every_exit_code_has_its_heading_with_the_words_that_help_shows() -> None:
    codes = {name: value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert set(exits.MEANINGS) == set(codes.values())
    page = problems_page.PAGE.read_text("utf-8")
    found = re.findall(r"^### Exit code (\d+): (.+)$", page, re.MULTILINE)
    assert {int(code): words for code, words in found} == exits.MEANINGS
    assert all(f"{code} {words}" in exits.HELP for code, words in found)
