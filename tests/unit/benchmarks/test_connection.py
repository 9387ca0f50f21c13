from __future__ import annotations

import pytest

from penstock.benchmarks.connection import AnswerReader, Target, UnreadableAnswer, parse_target, request_bytes
from penstock.errors import BadRequest

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"


def test_a_whole_answer_in_one_piece_is_complete() -> None:
    reader = AnswerReader()
    assert reader.feed(OK)
    assert (reader.status, reader.closes, reader.body) == (200, False, b"hello")


def test_an_answer_is_complete_only_with_its_last_byte_however_it_is_cut() -> None:
    for cut in range(1, len(OK)):
        reader = AnswerReader()
        assert not reader.feed(OK[:cut])
        assert reader.feed(OK[cut:])
        assert reader.status == 200


def test_one_reader_reads_answer_after_answer() -> None:
    reader = AnswerReader()
    for status in (202, 404, 200):
        assert reader.feed(OK.replace(b"200 OK", b"%d X" % status))
        assert reader.status == status


def test_an_answer_without_body_ends_with_its_head() -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n")
    assert reader.status == 304


def test_header_names_are_read_in_any_case() -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH: 0\r\nConnection: Close\r\n\r\n")
    assert reader.closes


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader = AnswerReader()
    assert not reader.feed(b"HTTP/1.0 200 OK\r\n\r\nsome")
    assert not reader.feed(b"thing")
    assert reader.ends_with_connection()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nmore",
    ],
)
def test_what_cannot_be_measured_is_refused(answer: bytes) -> None:
    with pytest.raises(UnreadableAnswer):
        AnswerReader().feed(answer)


def test_a_target_keeps_path_and_query() -> None:
    assert parse_target("http://h:81/a/b?c=1") == Target("h", 81, "/a/b?c=1")
    assert parse_target("http://h") == Target("h", 80, "/")


@pytest.mark.parametrize("url", ["https://h/", "h:80/x", "http:///x"])
def test_an_url_that_cannot_be_loaded_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        parse_target(url)


def test_a_request_is_written_whole() -> None:
    request = request_bytes(Target("h", 80, "/p"), method="POST", body=b"{}", headers={"Content-Type": "application/json"})
    assert request == b"POST /p HTTP/1.1\r\nHost: h:80\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    assert b"Content-Length" not in request_bytes(Target("h", 80, "/p"), method="DELETE")
    assert b"Content-Length: 0" in request_bytes(Target("h", 80, "/p"), method="POST")
