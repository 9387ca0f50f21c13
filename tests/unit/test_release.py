"""What stands between a tree and a release: the version and the changelog, and the hosted CI for each Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from penstock.errors import PenstockError
from tests.compose.images import LIMITS_MB
from tests.release import ROOT, agreed_version
from tests.unit.test_packaging import PYPROJECT

WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def test_the_changelog_describes_the_version_of_this_tree() -> None:
    version = PYPROJECT["project"]["version"]
    assert agreed_version(version, (ROOT / "CHANGELOG.md").read_text()) == version


@pytest.mark.parametrize(
    ("changelog", "said"),
    [
        ("# Changelog\n\n## 1.3.0 (unreleased)\n\n## 1.2.3 (2026-11-23)\n", "describes 1.3.0 first"),
        ("# Changelog\n\n## 1.2.3\n", "no heading of a version"),
        ("", "no heading of a version"),
    ],
)
def test_a_changelog_of_another_version_stands_in_the_way(changelog: str, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        agreed_version("1.2.3", changelog)


def test_hosted_ci_runs_the_one_script_for_each_python_that_the_package_names() -> None:
    [job] = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    named = [line.rpartition(" ")[2] for line in PYPROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert job["strategy"]["matrix"]["python"] == named
    [script] = [step for step in job["steps"] if "run" in step]
    assert script["run"] == ".ci/run"
    assert "${{ matrix.python }}" in script["env"]["PYTHON"]
    assert '"${PYTHON:-' in (ROOT / ".ci" / "run").read_text()


def test_actions_of_others_are_named_by_their_commit() -> None:
    used = re.findall(r"uses: (\S+)", WORKFLOW.read_text())
    assert used
    assert all(re.search(r"@[0-9a-f]{40}$", each) for each in used)


def test_the_script_of_ci_makes_the_release_check() -> None:
    assert "make release-check" in Path(ROOT, ".ci", "run").read_text()


def test_the_page_of_deployment_names_the_limits_of_the_images() -> None:
    page = (ROOT / "docs" / "production" / "deploy.md").read_text()
    rows = {target: row for target in LIMITS_MB for row in page.splitlines() if row.startswith(f"| `{target}` |")}
    assert all(f"adds less than {limit:,} MB" in rows[target] for target, limit in LIMITS_MB.items())
