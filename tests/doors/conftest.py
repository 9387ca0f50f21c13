"""The stack of the suite, and its parameter `door`: each test runs once per door."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from penstock.embedded.server import EmbeddedServer
from tests.doors.check import feature_of
from tests.doors.door import Door
from tests.doors.doors import DOORS
from tests.doors.known import KNOWN
from tests.doors.stack import Stack
from tests.doors.stack import stack as started


@pytest.fixture(scope="package")
def stack(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    # With a server of its own: other folders empty the session's.
    folder = tmp_path_factory.mktemp("doors")
    with EmbeddedServer(folder / "store", fsync="everysec") as server, started(server.url, folder, DOORS.settings) as found:
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
            reason = f"known: {known}" if known else f"lacks: {door.lacks[feature]}"
            marks = [pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)]
        found.append(pytest.param(door, id=door.name, marks=marks))
    metafunc.parametrize("door", found)


@pytest.fixture
def patience_s(request: pytest.FixtureRequest) -> float:
    """Seconds to wait for what has to come: hardly any where the test is to fail."""
    return 1.0 if request.node.get_closest_marker("xfail") else 20.0


@pytest.fixture
def split(stack: Stack, door: Door) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """Set the split of the door's model; it has none at the end."""
    path, headers = f"/v1/models/{door.model}/split", stack.main.bearer()

    def put(weights: Mapping[str, float]) -> None:
        answer = stack.main.http.put(path, json={"weights": weights}, headers=headers)
        assert answer.status_code == 200, answer.text

    yield put
    stack.main.http.delete(path, headers=headers)
