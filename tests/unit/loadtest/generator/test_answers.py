from __future__ import annotations

import pytest

from penstock.loadtest.generator.answers import AnswerReader, UnreadableAnswer

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
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nmore",
    ],
)
def test_what_cannot_be_measured_is_refused(answer: bytes) -> None:
    with pytest.raises(UnreadableAnswer):
        AnswerReader().feed(answer)


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n7;name=value\r\n, world\r\n0\r\nX-Trailer: 1\r\n\r\n"
)


def test_a_chunked_answer_is_complete_with_its_trailers_however_it_is_cut() -> None:
    for cut in range(1, len(CHUNKED)):
        reader = AnswerReader()
        assert not reader.feed(CHUNKED[:cut])
        assert reader.feed(CHUNKED[cut:])
        assert reader.body == b"hello, world"


def test_a_chunked_answer_may_come_byte_by_byte_and_be_followed_by_another() -> None:
    reader = AnswerReader()
    for answer in (CHUNKED, OK, CHUNKED):
        assert [reader.feed(answer[at : at + 1]) for at in range(len(answer))] == [False] * (len(answer) - 1) + [True]


def test_headers_are_found_by_name_with_their_values_as_sent() -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nX-Penstock-Job: abc-Square\r\nContent-Length: 0\r\n\r\n")
    assert reader.header(b"x-penstock-job") == b"abc-Square"
    assert reader.header(b"server-timing") == b""


def test_only_the_first_bytes_of_a_long_body_are_kept() -> None:
    reader = AnswerReader()
    assert not reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + b"a" * 1_500)
    assert reader.feed(b"b" * 7_500)
    assert reader.body == b"a" * 1_500 + b"b" * 500
