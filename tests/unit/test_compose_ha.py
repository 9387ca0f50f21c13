"""compose.ha.yaml, checked by reading it, without Docker. `make compose-ha-test` runs it and kills its parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.test_compose import FOLDER, SERVICES, default


class _Loader(yaml.SafeLoader):
    """Knows Compose's `!reset`, which takes back what the first file says."""


_Loader.add_constructor("!reset", lambda loader, node: loader.construct_sequence(node))
HA: dict[str, Any] = _Loader((FOLDER / "compose.ha.yaml").read_text("utf-8")).get_single_data()
OWN: dict[str, dict[str, Any]] = HA["services"]
GATEWAYS, STORES = ("gateway", "gateway-2"), ("valkey", "valkey-2", "valkey-3")
SENTINELS = ("sentinel-1", "sentinel-2", "sentinel-3")


def test_only_the_proxy_publishes_a_port_and_on_loopback() -> None:
    assert [name for name in GATEWAYS if OWN[name]["ports"] != []] == []
    published = {name: service["ports"] for name, service in OWN.items() if service.get("ports")}
    assert list(published) == ["proxy"]
    assert default(published["proxy"][0]) == "127.0.0.1:8080:8080"


def test_what_is_new_is_as_locked_down_as_the_rest() -> None:
    """All but the proxy extend a service of compose.yaml."""
    extended = {name: service["extends"] for name, service in OWN.items() if "extends" in service}
    assert set(OWN) - set(SERVICES) == {*extended, "proxy"}
    assert {found["file"] for found in extended.values()} == {"compose.yaml"}
    proxy = OWN["proxy"]
    assert (proxy["read_only"], proxy["init"], proxy["cap_drop"]) == (True, True, ["ALL"])
    assert proxy["security_opt"] == ["no-new-privileges:true"]
    assert set(proxy["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}


def test_every_address_that_all_know_is_the_one_that_its_container_has() -> None:
    known = dict(line.split("=") for line in HA["x-hosts"])
    fixed = {
        name: service["networks"]["inside"]["ipv4_address"]
        for name, service in OWN.items()
        if isinstance(service.get("networks"), dict)
    }
    assert known == fixed
    assert set(known) == {*STORES, *SENTINELS, *GATEWAYS}
    asking = {name for name, service in OWN.items() if service.get("extra_hosts") == HA["x-hosts"]}
    assert asking == set(OWN) - {"setup"}


@pytest.mark.parametrize("name", ["gateway", "gateway-2", "worker", "runner"])
def test_a_202_waits_for_a_replicas_disk(name: str) -> None:
    assert OWN[name]["environment"] == {"PENSTOCK_STORE__DURABILITY": "replicated"}


def test_each_store_and_sentinel_has_a_disk_of_its_own() -> None:
    volumes = [OWN[name]["volumes"][0].partition(":")[0] for name in (*STORES[1:], *SENTINELS)]
    assert sorted(volumes) == sorted(HA["volumes"])


def test_the_proxys_script_finds_what_it_replaces() -> None:
    text = (FOLDER / "nginx" / "penstock.conf").read_text()
    for found in re.findall(r"-e 's#([^#]+)#", (FOLDER / "nginx" / "compose.sh").read_text()):
        assert re.search(found, text), found


def test_the_sentinels_know_the_servers_that_the_setup_names() -> None:
    address = OWN["setup"]["command"][-1]
    assert re.findall(r"(sentinel-\d):26379", address) == list(SENTINELS)
    name = address.split("/")[3]
    assert f"sentinel monitor {name} valkey 6379 2" in (Path(FOLDER) / "valkey" / "sentinel.sh").read_text()
