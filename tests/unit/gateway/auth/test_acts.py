"""Every route that changes something is an act in the audit log, or is among those that programs call for single jobs."""

from __future__ import annotations

from penstock.access import Role
from penstock.extensions.oip.gateway.routes import UNSERVED
from tests.security.keyed import RULES

# What programs do to the single job, run or file whose id they have; the log of jobs has it.
SINGLE = ("{job_id}", "{run_id}", "{file_id}", "{batch_id}", "{prediction_id}")
# Asked by POST, and changes nothing.
READS = {("POST", "/v2/repository/index")}


def test_every_route_that_changes_something_is_an_act_but_for_the_work_of_programs() -> None:
    changing = {place for place in RULES.roles if place[0] != "GET"} - set(UNSERVED) - READS
    submitting = {place for place in changing if RULES.roles[place] == (Role.SUBMIT,)}
    single = {place for place in changing if any(word in place[1] for word in SINGLE)}
    assert changing - submitting - single - set(RULES.acts) == set()
    assert not {place for place in submitting | single if Role.MANAGE in RULES.roles[place] and len(RULES.roles[place]) == 1}


def test_every_act_is_a_route() -> None:
    assert set(RULES.acts) <= set(RULES.roles)
