"""The stack of the suite, and its parameter `door`: each test runs once per door."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doors.check import feature_of
from tests.doors.doors import DOORS
from tests.doors.known import KNOWN
from tests.doors.stack import Stack, stack as started


@pytest.fixture(scope="session")
def stack(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with started(redis_server, tmp_path_factory.mktemp("doors")) as found:
        yield found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "door" not in metafunc.fixturenames:
        return
    feature, test = feature_of(metafunc.function), metafunc.function.__name__
    found = []
    for door in DOORS.found:
        marks = []
        known = KNOWN.get((door.name, test))
        if known or feature in door.lacks:
            reason = known or f"lacks: {door.lacks[feature]}"
            marks = [pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)]
        found.append(pytest.param(door, id=door.name, marks=marks))
    metafunc.parametrize("door", found)
