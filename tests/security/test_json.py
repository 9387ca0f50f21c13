"""Malicious JSON: the gateway refuses it quickly."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx2
import jsonschema_rs
import pytest

from penstock.errors import BadRequest
from penstock.gateway.asgi.bodies import UNBUILT, check_schema, parse_json
from tests.security.keyed import ALICE, SUBMITS, filled

BOMBS = {
    "five-million-deep": b"[" * 4_000_000,
    "deep-and-closed": b"[" * 100_000 + b"]" * 100_000,
    "deep-objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "deep-in-the-middle": b"[" + b"[]," * 1_000 + b"[" * 70 + b"]" * 70 + b"]",
    "five-thousand-digits": b'{"x":' + b"9" * 5_000 + b"}",
    "a-number-of-200-kb": b"1" * 200_000,
    "nan": b'{"x": NaN}',
    "infinity": b'{"x": -Infinity}',
    "no-double": b'{"x": 1e999}',
    "said-twice": b'{"x": 1, "x": 2}',
    "said-twice-within": b'[{"a": {"x": 1, "y": 2, "x": 3}}]',
    "said-twice-in-disguise": b'{"x": 1, "\\u0078": 2}',
    "said-twice-with-a-decoy": b'{"x": 1, "x": 2, "y": "\\u003a"}',
    "lone-surrogate": b'{"x": "\\ud800"}',
    "lone-low-surrogate": b'{"x": "\\udc00"}',
    "surrogates-the-wrong-way-round": b'{"x": "\\udc00\\ud800"}',
    "not-utf-8": b'{"x": "\xff\xfe"}',
    "overlong-utf-8": b'{"x": "\xc0\xaf"}',
    "two-values": b'{"x": 1} {"x": 2}',
    "a-comment": b'{"x": 1 /* 2 */}',
    "a-trailing-comma": b'{"x": 1,}',
    "with-a-byte-order-mark": b'\xef\xbb\xbf{"x": 1}',
    "a-null-byte": b'{"x": "a\x00b"}',
    "leading-zeros": b'{"x": 007}',
    "nothing": b"",
}


def cpu_s(work: Callable[[], object]) -> float:
    """The processor time of the cheapest of three runs, so that other load on the machine does not count."""
    lasted = []
    for _ in range(3):
        before = time.thread_time()
        work()
        lasted.append(time.thread_time() - before)
    return min(lasted)


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS)
def test_it_is_refused_before_it_costs_anything(body: bytes) -> None:
    def refused() -> None:
        with pytest.raises(BadRequest):
            parse_json(body, max_depth=64)

    # A refusal takes up to 50 ms on an idle machine; the largest body has 4 MB.
    assert cpu_s(refused) < 0.25


@pytest.mark.parametrize("path", SUBMITS)
def test_it_is_a_400_on_every_route_that_takes_json(gateway: httpx2.Client, path: str) -> None:
    headers = {**ALICE.header, "content-type": "application/json"}
    for name, body in BOMBS.items():
        if len(body) < 300_000:
            answer = gateway.post(filled(path), content=body, headers=headers)
            assert answer.status_code == 400, (name, answer.text)


@pytest.mark.parametrize(
    "body", [b'{"x": 1, "y": {"x": 1}}', b'[{"x": 1}, {"x": 2}]', b'{"x": "a: b: c"}', b'{"x:": ":", ":": 1}']
)
def test_what_only_looks_doubled_is_taken(body: bytes) -> None:
    assert parse_json(body, max_depth=64) is not None


def test_many_small_values_are_not_built_where_others_wait() -> None:
    body = b"[" + b"[]," * 1_300_000 + b"[]]"
    assert parse_json(body, max_depth=64) is UNBUILT
    assert cpu_s(lambda: parse_json(body, max_depth=64)) < 0.5


def test_numbers_that_share_a_hash_cost_no_more_than_others() -> None:
    """A38: Python gives all multiples of this prime one hash, so that a set of them takes quadratic time to build. The gateway
    never hashes a number of a client.
    """
    prime = 2**61 - 1
    crafted = [number * prime for number in range(4_000)]
    body = ("[" + ",".join(map(str, crafted)) + "]").encode()
    schema = {"type": "array", "items": {"type": "number"}}
    validator = jsonschema_rs.validator_for(schema)
    assert cpu_s(lambda: check_schema(parse_json(body, max_depth=64), validator, schema)) < 0.1 * cpu_s(lambda: set(crafted))


def test_finding_the_doubled_name_among_many_takes_no_longer_than_reading() -> None:
    names = b",".join(b'"k%d":1' % number for number in range(18_000))

    def found() -> None:
        with pytest.raises(BadRequest, match="k17999"):
            parse_json(b"{" + names + b',"k17999":2}', max_depth=64)

    assert cpu_s(found) < 0.3
