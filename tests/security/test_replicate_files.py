"""A prediction may name uploaded files by link: only those of its caller are read."""

from __future__ import annotations

from tests.acceptance.gateway_process import GatewayClient
from tests.security.keyed import ALICE, BOB, TestKey


def upload(gateway: GatewayClient, key: TestKey, data: bytes) -> str:
    answer = gateway.post("/replicate/v1/files", files={"content": ("a.txt", data)}, headers=key.header)
    assert answer.status_code == 201, answer.text
    link: str = answer.json()["urls"]["get"]
    return link


def test_a_prediction_cannot_read_the_file_of_another_owner(gateway: GatewayClient) -> None:
    link = upload(gateway, ALICE, b"a secret of team-a")
    body = {"version": "square:1", "input": {"x": link}}
    refused = gateway.post("/replicate/v1/predictions", json=body, headers=BOB.header)
    absent = {**body, "input": {"x": link[:-26] + "0" * 26}}
    missing = gateway.post("/replicate/v1/predictions", json=absent, headers=BOB.header)
    assert (refused.status_code, missing.status_code) == (404, 404)
    assert b"secret" not in refused.content
    assert gateway.get("/replicate/v1/files", headers=BOB.header).json()["results"] == []


def test_the_files_of_one_input_are_bounded_however_often_a_link_stands_there(gateway: GatewayClient) -> None:
    link = upload(gateway, ALICE, b"x" * 1024 * 1024)
    body = {"version": "square:1", "input": {"x": [link] * 40}}
    refused = gateway.post("/replicate/v1/predictions", json=body, headers=ALICE.header)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
