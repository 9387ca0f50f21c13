"""The ids of Cog's predictions are their callers' own, so that an owner must not reach what another one named alike."""

from __future__ import annotations

import httpx2

from tests.acceptance.gateway_process import GatewayClient
from tests.security.keyed import ALICE, BOB, READER, TestKey

URL = "/cog/square/predictions"
BODY = {"input": {"x": 4}}


def stored(gateway: GatewayClient, key: TestKey, name: str) -> str:
    """The id of the job of a prediction that waits."""
    answer = gateway.put(f"{URL}/{name}", json=BODY, headers={**key.header, "prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    return answer.headers["x-penstock-job"]


def comparable(answer: httpx2.Response, name: str) -> tuple[int, bytes]:
    return answer.status_code, answer.content.replace(name.encode(), b"NAME")


def test_two_owners_may_use_one_id_and_each_has_its_own_prediction(gateway: GatewayClient) -> None:
    alices, bobs = stored(gateway, ALICE, "shared"), stored(gateway, BOB, "shared")
    assert alices != bobs
    assert (stored(gateway, ALICE, "shared"), stored(gateway, BOB, "shared")) == (alices, bobs)
    assert gateway.post(f"{URL}/shared/cancel", headers=BOB.header).status_code == 200
    assert gateway.get(f"/v1/jobs/{alices}", headers=READER.header).json()["status"] == "queued"


def test_the_prediction_of_another_owner_is_answered_as_one_that_never_was(gateway: GatewayClient) -> None:
    job = stored(gateway, ALICE, "alices-own")
    head = {**BOB.header, "x-request-id": "same"}
    absent = comparable(gateway.post(f"{URL}/nobodys-own/cancel", headers=head), "nobodys-own")
    assert absent[0] == 404
    for name in ("alices-own", job):
        assert comparable(gateway.post(f"{URL}/{name}/cancel", headers=head), name) == absent
    assert gateway.get(f"/v1/jobs/{job}", headers=READER.header).json()["status"] == "queued"
