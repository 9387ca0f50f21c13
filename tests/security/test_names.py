"""Names, paths and headers that try to escape into files, logs, headers or metrics, or to lead to another site's page."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.errors import MalformedId, PenstockError
from penstock.job import MODEL_NAME, parse_job_id
from tests.security.keyed import ALICE, BOSS, OPERATIONS, send

HOSTILE = [
    "..",
    "/",
    "\\",
    "%2e",
    "%2f",
    "%00",
    "\x00",
    "\n",
    "\r",
    ";",
    ":",
    "~",
    "etc",
    "passwd",
    ".in",
    ".out",
    "a" * 26,
    "é",
    "-",
    "'",
]
TARGETS = [
    "/v1/jobs/..%2f..%2fetc%2fpasswd",
    "/v1/jobs/../../etc/passwd",
    "/v1/jobs/%2e%2e/%2e%2e/metrics",
    "/v1/models/..%5c..%5cboot.ini",
    "/v1/models/%00",
    "/v1/models/square%00.py/jobs",
    "/v1/models/square/../../workers",
    "/predictions/square%2f..%2f..%2fv1%2fworkers",
    "/predictions/%c0%ae%c0%ae",
    "/predictions/a%0d%0aset-cookie:%20a=b",
    "//v1/workers",
    "/v1//workers",
    "/V1/WORKERS",
    "/v1/workers/",
    "/v1/workers;a=b",
    "/v1/workers%3f",
    "/problems/..%2f..%2fetc%2fpasswd",
    "/livez/../v1/workers",
    "/livez%2f..%2fv1%2fworkers",
    "http://evil.example/v1/workers",
    "*",
]


def raw(client: httpx2.Client, request: bytes) -> bytes:
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=5.0) as connection:
        connection.sendall(request)
        answer = b""
        while chunk := connection.recv(65_536):
            answer += chunk
    return answer


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_path_leads_around_its_route_or_out_of_the_gateway(gateway: httpx2.Client, method: str, target: str) -> None:
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n"
    with_key = raw(gateway, f"{head}Authorization: {ALICE.header['authorization']}\r\n\r\n".encode())
    status = int(with_key.split()[1])
    assert status in (400, 403, 404, 405, 415, 421), with_key
    assert b"set-cookie" not in with_key.partition(b"\r\n\r\n")[0]
    assert b"root:" not in with_key
    assert int(raw(gateway, f"{head}\r\n".encode()).split()[1]) in (400, 401, 404, 405, 429)


def test_a_public_path_is_not_a_way_to_a_closed_one(stranger: httpx2.Client) -> None:
    for path in (
        "/problems/overloaded/../../v1/workers",
        "/problems/x%2f..%2f..%2fv1%2fworkers",
        "/problems/",
        "/problems/x/y",
    ):
        answer = stranger.get(path)
        assert answer.status_code in (401, 404)
        assert "slots" not in answer.text


def test_no_made_up_name_opens_a_file_outside_the_blob_folder(tmp_path: Path) -> None:
    opened: list[str] = []
    watching = [True]

    def hear(event: str, args: tuple[object, ...]) -> None:
        if watching[0] and event in ("open", "os.remove", "os.rename", "os.mkdir"):
            opened.append(str(args[0]))

    sys.addaudithook(hear)  # an audit hook cannot be removed; `watching` switches this one off
    blobs, chance = LocalBlobs(tmp_path), random.Random(7)
    for _ in range(5_000):
        name = "".join(chance.choices(HOSTILE, k=chance.randint(1, 6)))
        for call in (blobs.get, lambda name: blobs.delete_all([name]), lambda name: blobs.put(name, b"x")):
            try:
                call(name)
            except (PenstockError, ValueError):
                continue
    watching[0] = False
    assert [path for path in opened if not path.startswith(str(tmp_path))] == []


def test_no_made_up_text_is_an_id_or_a_model_unless_it_has_their_form() -> None:
    chance = random.Random(7)
    for _ in range(50_000):
        text = "".join(chance.choices(HOSTILE, k=chance.randint(1, 4)))
        try:
            parsed = parse_job_id(text)
        except MalformedId:
            continue
        assert len(parsed.serial) == 26
        assert MODEL_NAME.fullmatch(parsed.model)
        assert not set(parsed.model) & set("/\\%\x00\r\n")


NOT_AN_ID = ["a b", "a\x1b[31m", "a\x7f", "a" * 65, "\xe2\x80\xa8", "<script>", "", "a;b", "{}"]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_request_id_that_could_forge_a_log_line_is_replaced_and_a_good_one_kept(
    gateway: httpx2.Client, method: str, path: str
) -> None:
    names = {
        len(send(gateway, method, path + "x", key=ALICE, headers={"x-request-id": id}).headers)
        for id in [*NOT_AN_ID, "good.one-1"]
    }
    assert len(names) == 1, "no header was added by any of them"
    for given in NOT_AN_ID:
        answer = send(gateway, method, path + "/nothing", key=ALICE, headers={"x-request-id": given})
        assert answer.headers["x-request-id"].isalnum()
        assert len(answer.headers["x-request-id"]) == 32
    answer = send(gateway, method, path + "/nothing", key=ALICE, headers={"x-request-id": "good.one-1"})
    assert answer.json()["request_id"] == answer.headers["x-request-id"] == "good.one-1"


def test_a_header_with_a_line_break_is_not_http(gateway: httpx2.Client) -> None:
    for bad in (b"a\rb", b"a\nb: c", b"a\x00b"):
        answer = raw(
            gateway, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: " + bad + b"\r\nConnection: close\r\n\r\n"
        )
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"\r\nb: c" not in answer


def test_one_event_is_one_line_of_json_whatever_is_in_it() -> None:
    hostile = ['/a\n{"event": "forged"}', "/a\r\nb", "/\x1b[2J", "/\u2028x\u2029y\x85", "/\ud800", "/%0a", "/" + "x" * 500]
    program = (
        "import json, sys, structlog\n"
        "from penstock import logs\n"
        "logs.configure()\n"
        "for path in json.loads(sys.argv[1]):\n"
        "    structlog.get_logger().warning('store_unavailable', path=path[:200], request_id='x')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, json.dumps(hostile)], capture_output=True, check=True)
    lines = done.stdout.split(b"\n")[:-1]
    assert len(lines) == len(hostile)
    assert [json.loads(line)["path"] for line in lines] == [path[:200] for path in hostile]
    assert all(byte >= 32 for line in lines for byte in line)


def test_the_log_of_the_session_is_lines_of_json_so_far(gateway_log: Path) -> None:
    assert all(json.loads(line)["event"] for line in gateway_log.read_text().splitlines() if line.startswith("{"))


def series(gateway: httpx2.Client) -> set[str]:
    lines = gateway.get("/metrics", headers=BOSS.header).text.splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


def test_names_that_callers_invent_make_no_new_figures(gateway: httpx2.Client) -> None:
    chance = random.Random(7)

    def invent(number: int) -> None:
        word = f"{chance.getrandbits(64):x}"
        gateway.get(f"/v1/models/{word}", headers=ALICE.header)
        gateway.post(f"/predictions/{word}/{word}", json=1, headers=ALICE.header)
        gateway.post(f"/v1/models/{word}/jobs", json=1, headers=ALICE.header)
        gateway.request(f"X{word[:8].upper()}", "/v1/models", headers=ALICE.header)
        gateway.get(f"/{word}/{number}", headers=ALICE.header)

    for number in range(3):
        invent(number)
    before = series(gateway)
    for number in range(300):
        invent(number)
    assert series(gateway) - before == set()
    assert len(before) < 2_000


ORIGINS = ["https://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1:8080"]
HOSTS = [
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "169.254.169.254",
    "[::ffff:1.2.3.4]",
    "",
    "localhost:80@evil.example",
]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_page_of_another_site_is_allowed_in(gateway: httpx2.Client, method: str, path: str) -> None:
    for origin in ORIGINS:
        for verb in (method, "OPTIONS"):
            answer = send(gateway, verb, path, key=ALICE, headers={"origin": origin, "access-control-request-method": method})
            assert not any(name.startswith("access-control") for name in answer.headers)
            assert "set-cookie" not in answer.headers
    for host in HOSTS:
        assert send(gateway, method, path, key=ALICE, headers={"host": host}).status_code in (400, 421), host
