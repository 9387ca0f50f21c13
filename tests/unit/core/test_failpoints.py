"""A failpoint fires where and when the environment asks for it, and costs nothing otherwise."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.errors import ConfigError
from penstock.failpoints import SITES, VARIABLE, InjectedFault, armed


def test_without_the_variable_a_site_does_nothing() -> None:
    failpoint = armed({})
    assert not any(failpoint(site) for site in SITES)


def test_a_site_fires_at_the_time_asked_for_and_never_again() -> None:
    failpoint = armed({VARIABLE: "after_claim:raise:3"})
    failpoint("after_claim")
    failpoint("after_claim")
    with pytest.raises(InjectedFault):
        failpoint("after_claim")
    failpoint("after_claim")


def test_other_sites_do_not_count() -> None:
    failpoint = armed({VARIABLE: "after_claim:raise:2,in_sweep:raise"})
    failpoint("after_claim")
    failpoint("before_run")
    with pytest.raises(InjectedFault):
        failpoint("in_sweep")


def test_sleep_takes_the_seconds_given() -> None:
    failpoint = armed({VARIABLE: "before_run:sleep=0.02"})
    began = time.monotonic()
    failpoint("before_run")
    assert time.monotonic() - began >= 0.02


@pytest.mark.parametrize("text", ["after_clam:kill", "after_claim:kil", "after_claim"])
def test_a_misspelt_fault_is_refused_because_it_would_test_nothing(text: str) -> None:
    with pytest.raises(ConfigError):
        armed({VARIABLE: text})


def test_every_site_is_reached_by_some_code() -> None:
    root = Path(failpoints.__file__).resolve().parent.parent
    code = "".join(
        path.read_text() for folder in ("workers", "gateway", "extensions", "runs") for path in (root / folder).rglob("*.py")
    )
    assert [site for site in sorted(SITES) if f'failpoint("{site}")' not in code] == []
