"""How the settings that bound a version's slots fit together: slots, min_slots, max_slots, idle_unload_s. Pure.

`slots` is the number at the start, and the fixed number unless one of the others is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from pydantic import Field

from penstock.model_spec import ScalingPolicy
from penstock.rollout import MOST_SLOTS
from penstock.settings.extension_tables import ExtensionFields
from penstock.settings.keys import Table
from penstock.settings.models import Seconds


class ScalingFields(ExtensionFields, Table):
    """The fields of a version whose slots follow its work."""

    min_slots: int | None = Field(default=None, ge=0, le=MOST_SLOTS)
    max_slots: int | None = Field(default=None, ge=1, le=MOST_SLOTS)
    idle_unload_s: Seconds | None = None
    backlog_goal_s: Seconds = 5.0

    @classmethod
    def fault(cls, table: Mapping[str, Any], said: Set[str]) -> str:
        return scaling_fault(table, said)

    @classmethod
    def of_spec(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"scaling": scaling_of(table)}


def scaling_of(table: Mapping[str, Any]) -> ScalingPolicy | None:
    """None if the number of slots is fixed. An unset bound defaults to `slots`; with `idle_unload_s` the lower bound is 0."""
    low, high, idle_s = table["min_slots"], table["max_slots"], table["idle_unload_s"]
    if low is None and high is None and idle_s is None:
        return None
    fixed = table["slots"] * table["slots_per_device"]
    least = low if low is not None else 0 if idle_s is not None else min(fixed, high or fixed)
    return ScalingPolicy(least, high or max(fixed, least), table["backlog_goal_s"], idle_s)


def scaling_fault(table: Mapping[str, Any], said: Set[str]) -> str:
    """Why these settings contradict each other, and what to do; empty if they do not. `said`: the settings as written."""
    low, high, policy = table["min_slots"], table["max_slots"], scaling_of(table)
    if policy is None:
        return _GOAL_ALONE if "backlog_goal_s" in said else ""
    if low == 0 and policy.idle_unload_s is None:
        return "min_slots = 0 does not say when the last slot goes; set idle_unload_s too, such as idle_unload_s = 600"
    if low is not None and high is not None and low > high:
        return f"min_slots = {low} is more than max_slots = {high}"
    if "slots" in said and table["device"] == "cpu" and policy.within(table["slots"]) != table["slots"]:
        return (
            f"slots = {table['slots']}, the number of slots at the start, is not from {policy.min_slots} to "
            f"{policy.max_slots}, as min_slots and max_slots say; leave `slots` out, or change them"
        )
    return ""


_GOAL_ALONE = "backlog_goal_s is for models whose slots follow their work; set max_slots too, or leave it out"
