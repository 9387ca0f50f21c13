"""The dashboard where extensions are not installed: their pages and sections are left out, and no page leads there."""

from __future__ import annotations

import re
from collections.abc import Container
from contextlib import closing
from importlib.metadata import distribution
from pathlib import Path

import pytest

from penstock.distribution import NAME
from penstock.embedded.server import EmbeddedServer
from penstock.extension import GROUP
from penstock.extensions.webhooks.webhook import new_signing_key
from tests.acceptance.gateway_process import GatewayClient, Hand, gateway_process

SOURCES = Path(__file__).parents[2] / "src" / "penstock"
OF_EXTENSIONS = {"webhooks": "/ui/webhooks", "history": "/ui/history"}
OWN = ("/", "/ui/models/square", "/ui/jobs", "/ui/runs", "/ui/failed", "/ui/workers", "/ui/audit", "/ui/api")
# What a browser loads by itself, or where one press leads.
ADDRESS = re.compile(r'(?:href|src|action|hx-get|hx-post)="([^"#?]*)')


def environment(folder: Path, left_out: set[str]) -> dict[str, str]:
    """Variables of a process that finds penstock without these extensions, in front of what is installed."""
    found = distribution(NAME)
    info = folder / f"{NAME.replace('-', '_')}-{found.version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(found.read_text("METADATA") or "")
    points = [f"{one.name} = {one.value}" for one in found.entry_points if one.group == GROUP and one.name not in left_out]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *points]))
    _link(SOURCES, folder / "penstock", but={"extensions"})
    _link(SOURCES / "extensions", folder / "penstock" / "extensions", but=left_out)
    for name in left_out:
        # Others may import its modules, but it declares no extension.
        _link(SOURCES / "extensions" / name, folder / "penstock" / "extensions" / name, but={"__init__.py"})
    signing = {} if "webhooks" in left_out else {"PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key()}
    return {"PYTHONPATH": str(folder), **signing}


def _link(source: Path, target: Path, *, but: Container[str]) -> None:
    target.mkdir()
    for path in source.iterdir():
        if path.name not in but:
            (target / path.name).symlink_to(path.resolve())


def named_on(client: GatewayClient, *pages: str) -> set[str]:
    """The addresses that these pages name, without their queries."""
    return {address for page in pages for address in ADDRESS.findall(client.get(page).raise_for_status().text)}


@pytest.mark.parametrize(
    "left_out",
    [
        set(),
        {"webhooks"},
        {"history"},
        {one.name for one in distribution(NAME).entry_points if one.group == GROUP},
    ],
    ids=["none", "webhooks", "history", "all"],
)
def test_a_dashboard_has_no_page_of_an_extension_that_is_not_installed_and_no_link_to_one(
    has_server: None, tmp_path: Path, left_out: set[str]
) -> None:
    env = environment(tmp_path, left_out)
    with (
        EmbeddedServer(tmp_path / "store", fsync="everysec") as server,
        gateway_process(server.url, tmp_path, env=env, cold=True, models={"square": {"source": "square:Square"}}) as client,
    ):
        hand = Hand(server.url)
        with closing(hand.store):
            hand.announce()
            job = client.post("/v1/models/square/jobs", json={"x": 4}).json()["id"]
            named = named_on(client, *OWN, f"/ui/jobs/{job}")
            there = {page for name, page in OF_EXTENSIONS.items() if name not in left_out}
            assert named & set(OF_EXTENSIONS.values()) == there
            asked = {address: client.get(address).status_code for address in {*named, *OF_EXTENSIONS.values()}}
    # 405 is what a form is sent to.
    assert {address for address, status in asked.items() if status not in (200, 405)} == set(OF_EXTENSIONS.values()) - there
