"""The Prometheus files are valid, and every alert has cases in which it fires and does not fire, and says what to do."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.prometheus import CONFIG, RULES, here, program

CASES = sorted((RULES.parent / "tests").glob("*.yml"))
ANNOTATIONS = {"summary", "meaning", "look", "run"}


@cache
def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def alerts() -> dict[str, Any]:
    groups = read(RULES / "alerts.yml")["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def promtool(*words: str | Path) -> str:
    # A third of its time went into collecting the garbage of one small database per case.
    env = {**os.environ, "GOGC": "800"}
    command = [program("promtool"), *map(str, words)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_configuration_and_its_rules_are_valid(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text(here(CONFIG.read_text("utf-8"), {}), "utf-8")
    assert "2 rule files found" in promtool("check", "config", config)
    promtool("check", "rules", *sorted(RULES.glob("*.yml")))


def test_every_case_of_the_rules_holds() -> None:
    promtool("test", "rules", *CASES)


def test_a_case_fails_when_its_rule_is_wrong(tmp_path: Path) -> None:
    """The cases can fail; otherwise a case that checks nothing would always pass."""
    for name in ("rules", "tests"):
        (tmp_path / name).mkdir()
    for file in RULES.glob("*.yml"):
        (tmp_path / "rules" / file.name).write_text(file.read_text("utf-8"), "utf-8")
    whole = read(RULES.parent / "tests" / "alerts.yml")
    asked = {**whole, "tests": [case for case in whole["tests"] if case["name"].startswith("PenstockRedisMemory ")]}
    cases, rules = tmp_path / "tests" / "alerts.yml", tmp_path / "rules" / "alerts.yml"
    cases.write_text(yaml.safe_dump(asked, sort_keys=False), "utf-8")
    promtool("test", "rules", cases)
    text, count = re.subn(r"(expr: max by \(store\) \(penstock_store_memory.*> )0\.85", r"\g<1>0.95", rules.read_text("utf-8"))
    assert count == 1
    rules.write_text(text, "utf-8")
    with pytest.raises(AssertionError, match="PenstockRedisMemory"):
        promtool("test", "rules", cases)


@pytest.mark.parametrize("alert", alerts())
def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent(alert: str) -> None:
    cases = read(RULES.parent / "tests" / "alerts.yml")["tests"]
    fires = [case for case in cases if case["name"].startswith(f"{alert} fires: ")]
    silent = [case for case in cases if case["name"].startswith(f"{alert} is silent: ")]
    assert fires
    assert silent
    for case in fires:
        [asked] = case["promql_expr_test"]
        assert asked["expr"] == 'ALERTS{alertstate="firing"}'
        assert [f'alertname="{alert}"' in sample["labels"] for sample in asked["exp_samples"]] == [True]
    for case in silent:
        [asked] = case["promql_expr_test"]
        assert asked["expr"] == f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
        assert asked["exp_samples"] == []


@pytest.mark.parametrize("alert", alerts())
def test_an_alert_says_what_it_means_where_to_look_and_what_to_run(alert: str) -> None:
    rule = alerts()[alert]
    assert rule["annotations"].keys() == ANNOTATIONS
    assert all(len(text) > 8 for text in rule["annotations"].values())
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_page_has_a_line_for_every_alert() -> None:
    page = (Path(__file__).parents[2] / "docs" / "production" / "monitoring.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(Penstock\w+)` \|", page, re.MULTILINE)) == alerts().keys()
