"""Headers and query parameters beside an input."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidInput
from penstock.inputs.request import decode_request, packed, unpacked
from penstock.job import REQUEST_MEDIA, Payload

BODY = Payload("application/json", b"[1]")


def test_an_input_is_packed_with_what_was_said_and_unpacked_as_it_came() -> None:
    found = packed(BODY, headers={"x-tenant": "blue"}, query={"language": "de"})
    assert found.content_type == REQUEST_MEDIA
    assert unpacked(found) == BODY
    said = decode_request(found.data)
    assert (said.headers, said.query) == ({"x-tenant": "blue"}, {"language": "de"})


def test_an_input_beside_which_nothing_was_said_stays_as_it_is() -> None:
    assert packed(BODY, headers={}, query={}) is BODY
    assert unpacked(BODY) is BODY


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02\x03", b"{}"])
def test_bytes_that_nobody_packed_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="are no input of a request"):
        decode_request(data)
