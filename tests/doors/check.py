"""`@check("trace")`: the feature that a test of the suite is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tests.doors.door import FEATURES, Door, Reply

Test = TypeVar("Test", bound=Callable[..., Any])
_FEATURE = "feature_of_doors"


def check(feature: str) -> Callable[[Test], Test]:
    """Mark a test as one about this feature: a door that lacks it must fail the test."""
    assert feature in FEATURES, feature

    def marked(test: Test) -> Test:
        setattr(test, _FEATURE, feature)
        return test

    return marked


def feature_of(test: Callable[..., Any]) -> str:
    found: str = getattr(test, _FEATURE)
    return found


def assert_refused(door: Door, reply: Reply, kind: str) -> None:
    """The call was refused, as the door's protocol words a refusal of this kind."""
    assert door.is_refused(reply), reply
    assert (reply.status, reply.code) == door.refusals.get(kind), reply.text
    door.check_refusal(reply)


def assert_comes_back(reply: Reply) -> None:
    """The reply says after how many seconds to try again."""
    assert 1 <= reply.retry_after_s <= 120, reply.headers


def is_check(value: object) -> bool:
    return callable(value) and hasattr(value, _FEATURE)
