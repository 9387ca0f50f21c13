"""What the deployment files promise, checked by reading them, without Docker. `make compose-test` runs them."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.embedded.server import EmbeddedServer
from penstock.settings.tables import Settings
from penstock.settings.worker import WorkerSettings
from tests.compose.test_stack import LASTING as CONTAINERS
from tests.pages import cli_page

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "compose"
FILES = ("compose.yaml", "compose.gpu.yaml")
with (ROOT / "pyproject.toml").open("rb") as _file:
    PROJECT: dict[str, Any] = tomllib.load(_file)
VERSION = PROJECT["project"]["version"]
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def loaded(name: str) -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text("utf-8"))
    return table


MAIN = loaded("compose.yaml")
SERVICES: dict[str, dict[str, Any]] = MAIN["services"]
LASTING = {name: service for name, service in SERVICES.items() if service["restart"] != "no"}
GPU_WORKERS: dict[str, dict[str, Any]] = loaded("compose.gpu.yaml")["services"]


def default(text: str) -> str:
    """Replace every ${VARIABLE:-default} by its default."""
    return VARIABLE.sub(r"\2", text)


def seconds(text: str) -> float:
    return float(text.removesuffix("s")) if text.endswith("s") else float(text.removesuffix("m")) * 60


def test_only_the_gateway_publishes_a_port_unless_a_profile_is_asked_for() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service and "profiles" not in service} == {"gateway"}


def test_every_port_is_published_on_loopback() -> None:
    ports = [default(port) for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == 4
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_can_write_little_and_become_nobody_else(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["init"], service["cap_drop"]) == (True, True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & set(service)
    assert int(service["user"].partition(":")[0]) > 0


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_limits_and_logs_of_bounded_size(name: str) -> None:
    service = SERVICES[name]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert {"max-size", "max-file"} == set(service["logging"]["options"])


@pytest.mark.parametrize("name", LASTING)
def test_a_service_that_lasts_is_started_again_and_has_a_health_check(name: str) -> None:
    assert LASTING[name]["restart"] == "unless-stopped"
    assert LASTING[name]["healthcheck"]["test"][0] == "CMD"


def test_who_needs_another_service_waits_until_that_is_well() -> None:
    conditions = {
        (other, wait["condition"]) for service in SERVICES.values() for other, wait in service.get("depends_on", {}).items()
    }
    assert conditions == {
        ("valkey", "service_healthy"),
        ("prometheus", "service_healthy"),
        ("store-load", "service_completed_successfully"),
    }


def test_every_image_is_pinned_and_ours_carries_the_version_of_the_project() -> None:
    services = [service for name in FILES for service in loaded(name)["services"].values()]
    images = {default(service["image"]) for service in services if "image" in service}
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+", image)] == []
    ours = {image for image in images if image.startswith("penstock:")}
    assert ours == {f"penstock:{VERSION}-onnx", f"penstock:{VERSION}-gpu"}


def test_the_base_image_is_pinned_too() -> None:
    bases = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert bases == ["python:3.11-slim-bookworm"]


def test_a_container_is_given_longer_to_stop_than_a_batch_is() -> None:
    graces = {seconds(service["stop_grace_period"]) for service in SERVICES.values()}
    assert min(graces) >= WorkerSettings().grace_s + 5


def test_only_what_publishes_a_port_is_on_a_network_with_a_way_out() -> None:
    assert MAIN["networks"]["inside"] == {"internal": True}
    outside = {name for name, service in SERVICES.items() if "edge" in service.get("networks", ())}
    assert outside == {name for name, service in SERVICES.items() if "ports" in service}


def test_no_secret_is_in_the_environment_and_each_service_mounts_its_own_alone() -> None:
    mounted = {name: set(service.get("secrets", ())) for name, service in SERVICES.items()}
    assert mounted["gateway"] == {"gateway_url", "api_keys"}
    assert mounted["worker"] == {"worker_url"}
    assert [name for name, secrets in mounted.items() if "admin_url" in secrets] == ["store-load"]
    values = [str(value) for service in SERVICES.values() for value in service.get("environment", {}).values()]
    assert [value for value in values if "://" in value or "@" in value] == []


@pytest.mark.parametrize("service", ["gateway", "worker"])
def test_the_environment_holds_settings_that_exist(service: str, tmp_path: Path) -> None:
    environment = {name: str(value) for name, value in SERVICES[service]["environment"].items()}
    contents = {
        "PENSTOCK_REDIS_URL_FILE": "redis://x/0",
        "PENSTOCK_KEYS_FILE": f'[[keys]]\nid = "a"\nsha256 = "{"1a" * 32}"\nroles = ["read"]\n',
    }
    for name in [name for name in environment if name.endswith("_FILE")]:
        (tmp_path / name).write_text(contents[name])
        environment[name] = str(tmp_path / name)
    environment["PENSTOCK_CONFIG"] = str(ROOT / "examples" / "digits" / "penstock.toml")
    settings = Settings.load(None, environment, need_files=True)
    assert settings.blob_dir == Path("/var/lib/penstock/blobs")
    assert f":{settings.gateway.port}" in default(SERVICES["gateway"]["ports"][0])[-5:]


@pytest.mark.parametrize("name", ["compose.yaml", "compose.ha.yaml"])
def test_every_command_of_a_service_is_one_of_penstocks(name: str) -> None:
    """Regression: the setup of compose.ha.yaml called a command that had become `store users`."""
    verbs = {one.words for one in cli_page.commands()}
    # Without Compose's own tags, such as !override.
    services = yaml.safe_load(re.sub(r" !\w+", "", (FOLDER / name).read_text("utf-8")))["services"]
    called = [words for one in services.values() if (words := one.get("command") or [""])[0] == "penstock"]
    assert called
    assert [words for words in called if not {words[1], " ".join(words[1:3])} & verbs] == []


def test_the_container_tests_know_every_service_that_lasts() -> None:
    assert set(CONTAINERS) == {name for name, service in LASTING.items() if "profiles" not in service}


def test_what_a_worker_makes_from_models_lies_on_a_volume_from_which_code_can_be_loaded() -> None:
    worker = SERVICES["worker"]
    mounts = dict(volume.split(":")[:2] for volume in worker["volumes"] if not volume.startswith("$"))
    folder = mounts["caches"]
    names = ("XDG_CACHE_HOME", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    assert [name for name in names if not worker["environment"][name].startswith(folder)] == []
    assert f"-m 0700 /var/lib/penstock {folder}" in (FOLDER / "Dockerfile").read_text(), (
        "the volume belongs to the image's user"
    )


def test_the_images_with_torch_have_a_compiler() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert re.search(r"FROM runtime AS compiler.*?apt-get install [^\n]* g\+\+ ", text, re.DOTALL)
    assert {"FROM compiler AS torch", "FROM compiler AS gpu"} <= set(text.splitlines())


def test_a_gpu_worker_has_limits_of_its_own() -> None:
    for service in GPU_WORKERS.values():
        limits = service["deploy"]["resources"]["limits"]
        assert (default(limits["cpus"]), default(limits["memory"])) == ("0", "16g")


def test_gateway_and_worker_share_the_folder_of_blobs() -> None:
    state = SERVICES["gateway"]["environment"]["PENSTOCK_STORE__STATE_DIR"]
    assert [f"blobs:{state}" in SERVICES[name]["volumes"] for name in ("gateway", "worker")] == [True, True]
    assert SERVICES["gateway"]["user"] == SERVICES["worker"]["user"]


def test_the_store_is_set_up_as_the_embedded_one() -> None:
    lines = [line.split(maxsplit=1) for line in (FOLDER / "valkey" / "valkey.conf").read_text().splitlines()]
    ours = {words[0]: words[1].strip('"') for words in lines if words and not words[0].startswith("#")}
    words = EmbeddedServer(Path("/s"), users=True)._command(Path("valkey-server"))[1:]
    embedded = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    same = ("appendonly", "appendfsync", "aof-load-truncated", "save", "maxmemory-policy")
    assert {name: ours[name] for name in same} == {name: embedded[name] for name in same}
    assert ours["appendfsync"] == "always"
    assert ours["aclfile"] == "/run/secrets/store_users"


def test_the_full_store_leaves_room_for_rewriting_its_log() -> None:
    command, limits = SERVICES["valkey"]["command"], SERVICES["valkey"]["deploy"]["resources"]["limits"]
    assert (default(command[-1]), default(limits["memory"])) == ("1gb", "2g")


def test_prometheus_scrapes_the_ports_that_gateway_and_worker_open() -> None:
    jobs = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {(names["names"][0], names["port"]) for job in jobs for names in job.get("dns_sd_configs", ())}
    gateway, worker = (SERVICES[name]["environment"] for name in ("gateway", "worker"))
    assert SERVICES["worker"]["networks"]["inside"]["aliases"] == ["workers"]
    assert targets >= {
        ("gateway", int(gateway["PENSTOCK_GATEWAY__METRICS_PORT"])),
        ("workers", int(worker["PENSTOCK_WORKER__METRICS_PORT"])),
    }


def test_every_gpu_is_reserved_with_its_capability() -> None:
    devices = [service["deploy"]["resources"]["reservations"]["devices"] for service in GPU_WORKERS.values()]
    assert len(devices) == 2
    for [device] in devices:
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        # Docker refuses a reservation with both.
        assert ("device_ids" in device) != ("count" in device)


def test_the_example_of_an_environment_file_names_every_variable_with_its_default() -> None:
    used = {
        name: value for file in (*FILES, "compose.ha.yaml") for name, value in VARIABLE.findall((FOLDER / file).read_text())
    }
    told = dict(re.findall(r"^#(PENSTOCK_\w+)=(.*)$", (FOLDER / ".env.example").read_text(), re.MULTILINE))
    assert told == used


def test_what_an_image_is_built_from_reaches_the_build() -> None:
    allowed = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    packages = {os.readlink(link).split("/")[2] for link in (ROOT / "src" / "penstock").iterdir() if link.is_symlink()}
    assert packages | {"src"} | {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "compose/prepare.sh"} <= allowed


def test_secrets_stay_out_of_git_and_out_of_images() -> None:
    assert (FOLDER / "secrets" / ".gitignore").read_text().split() == ["*", "!.gitignore"]
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"
