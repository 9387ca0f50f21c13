"""Files that inputs name by URL: fetched from a real server, within limits, and from no address that is not meant."""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.errors import HandlerLoadError, InvalidInput
from penstock.handlers.contract import Failure
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.outbound.pinned import resolve
from penstock.outbound.urls import parse_url
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.input_urls import MOST_FILES, UrlFetcher, trust
from penstock.workers.child.runner import _read
from penstock.workers.child.shards.rows import prepare_rows
from penstock.workers.ipc.frames import Item
from tests.certificates import Authority

PNG = b"\x89PNG" * 1_000
MODEL = """
from dataclasses import dataclass, field
from penstock import File, Image, model
@dataclass
class Input:
    image: Image
    more: list[File] = field(default_factory=list)
@model
def mine(item: Input) -> int: return len(item.image)
"""


class Pictures(BaseHTTPRequestHandler):
    """A server of files, some of which are traps."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, str]]] = []
    cookies: ClassVar[list[str | None]] = []
    endless: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["host"]))
        self.cookies.append(self.headers["cookie"])
        status, headers, body = self.answers().get(self.path.partition("?")[0], (404, {}, b""))
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if self.path == "/endless":
            self.endless.wait(30.0)

    def answers(self) -> dict[str, tuple[int, dict[str, str], bytes]]:
        png = {"content-type": "image/png", "set-cookie": "a=b"}
        return {
            "/cat%20a.png": (200, png, PNG),
            "/page": (200, {"content-type": "text/html"}, b"<p>"),
            "/moved": (302, {"location": "/cat%20a.png"}, b""),
            "/circle": (302, {"location": "/circle"}, b""),
            "/inside": (302, {"location": "http://169.254.169.254/latest/"}, b""),
            "/busy": (503, {}, b""),
            "/packed": (200, {**png, "content-encoding": "gzip"}, b"\x1f\x8b"),
            "/endless": (200, {**png, "content-length": "10000000"}, PNG),
        }

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pictures)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    Pictures.endless.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    path = tmp_path_factory.mktemp("model") / "mine.py"
    path.write_text(MODEL)
    return load(str(path), "mine")


def read(model: Loaded, fetcher: UrlFetcher, *inputs: Any) -> list[Any]:
    items = [Item("application/json", json.dumps(one).encode()) for one in inputs]
    return fetcher.read_all(lambda item: _read(model, item), items)


def one(model: Loaded, fetcher: UrlFetcher, url: str) -> Any:
    [found] = read(model, fetcher, {"image": url})
    return found


@contextmanager
def nothing_asked() -> Iterator[None]:
    before = len(Pictures.seen)
    yield
    assert len(Pictures.seen) == before


def test_a_file_at_a_url_is_like_one_that_was_sent(model: Loaded, origin: str) -> None:
    found = one(model, UrlFetcher([f"{origin}/"], 20.0), f"{origin}/cat%20a.png?key=1")
    assert (found.image, found.image.content_type, found.image.filename) == (PNG, "image/png", "cat a.png")
    assert one(model, UrlFetcher([f"{origin}/"], 20.0), f"{origin}/moved").image == PNG


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("/nowhere", "invalid_input", "answers 404"),
        ("/busy", "input_url_failed", "answers 503"),
        ("/circle", "invalid_input", "redirected more than 3 times"),
        ("/inside", "invalid_input", "redirected to another host"),
        ("/packed", "invalid_input", "compressed"),
        ("/page", "invalid_input", "the file is text/html"),
        ("/a/../cat%20a.png", "invalid_input", "begins with a dot"),
    ],
)
def test_what_cannot_be_fetched_fails_its_item_alone(model: Loaded, origin: str, path: str, code: str, said: str) -> None:
    good, bad, plain = read(
        model,
        UrlFetcher([f"{origin}/"], 20.0),
        {"image": f"{origin}/cat%20a.png"},
        {"image": f"{origin}{path}"},
        {"image": "iVBORw=="},
    )
    assert (len(good.image), plain.image) == (len(PNG), b"\x89PNG")
    assert isinstance(bad, Failure)
    assert (bad.code, bad.retryable) == (code, code == "input_url_failed")
    assert said in bad.message


def test_a_server_that_never_ends_costs_its_item_the_time_and_no_more(model: Loaded, origin: str) -> None:
    good, bad = read(model, UrlFetcher([f"{origin}/"], 1.0), {"image": f"{origin}/moved"}, {"image": f"{origin}/endless"})
    assert good.image == PNG
    assert (bad.code, bad.retryable) == ("input_url_failed", True)
    assert "did not arrive within 1 s" in bad.message


def test_the_limits_are_for_all_files_of_an_input_together(model: Loaded, origin: str) -> None:
    fetcher = UrlFetcher([f"{origin}/"], 20.0, most_bytes=len(PNG) + 1)
    urls = [f"{origin}/cat%20a.png?{number}" for number in range(MOST_FILES + 1)]
    assert one(model, fetcher, urls[0]).image == PNG
    [large] = read(model, fetcher, {"image": urls[0], "more": urls[1:2]})
    assert "more than 4001 bytes together" in large.message
    [many] = read(model, UrlFetcher([f"{origin}/"], 20.0), {"image": urls[0], "more": urls})
    assert f"more than {MOST_FILES} URLs" in many.message


def test_no_proxy_of_the_environment_is_asked_and_no_cookie_is_sent_back(
    model: Loaded, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    url = f"{origin}/cat%20a.png"
    [found] = read(model, UrlFetcher([f"{origin}/"], 20.0), {"image": url, "more": [f"{url}?a", f"{url}?b"]})
    assert (found.image, found.more) == (PNG, [PNG, PNG])
    assert set(Pictures.cookies) == {None}


def test_a_body_that_does_not_fit_is_fetched_once(model: Loaded, origin: str) -> None:
    url = f"{origin}/cat%20a.png?once"
    [found] = read(model, UrlFetcher([f"{origin}/"], 20.0), {"image": url, "more": 5})
    assert found.code == "invalid_input"
    assert [path for path, _ in Pictures.seen].count("/cat%20a.png?once") == 1


def test_the_request_goes_to_the_address_that_was_checked_and_names_the_host(model: Loaded, origin: str) -> None:
    port = origin.rpartition(":")[2]
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    fetcher = UrlFetcher([f"http://files.test:{port}/"], 20.0, resolve=resolve)
    assert one(model, fetcher, f"http://files.test:{port}/cat%20a.png?pinned").image == PNG
    assert asked == ["files.test"]
    assert ("/cat%20a.png?pinned", f"files.test:{port}") in Pictures.seen


@pytest.mark.parametrize(
    "addresses", [[], ["127.0.0.1"], ["169.254.169.254"], ["93.184.216.34", "10.0.0.1"], ["::ffff:127.0.0.1"], ["fd00::1"]]
)
def test_a_host_that_is_not_listed_has_public_addresses_or_is_not_asked(model: Loaded, addresses: list[str]) -> None:
    fetcher = UrlFetcher(["*"], 20.0, resolve=lambda host, port: addresses)
    with nothing_asked():
        found = one(model, fetcher, "https://files.example/cat.png")
    assert (found.code, "files.example has no public address" in found.message) == ("invalid_input", True)


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
def test_no_way_of_writing_this_machine_leads_here(model: Loaded, host: str) -> None:
    with nothing_asked():
        found = one(model, UrlFetcher(["*"], 20.0), f"https://{host}/cat.png")
    assert found.code == "invalid_input"


def test_a_server_without_tls_is_not_read_where_https_is_meant(model: Loaded, origin: str) -> None:
    port = origin.rpartition(":")[2]
    found = one(model, UrlFetcher([f"https://127.0.0.1:{port}/"], 20.0), f"https://127.0.0.1:{port}/cat%20a.png")
    assert (found.code, found.retryable) == ("input_url_failed", True)


def test_the_rows_of_a_run_have_their_files_fetched_by_the_same_rules(model: Loaded, origin: str) -> None:
    allowed = replace(model, input_urls=(f"{origin}/",), input_urls_s=20.0)
    urls = [f"{origin}/cat%20a.png", f"{origin}/busy", "https://elsewhere.example/a.png"]
    rows = [{"image": url} for url in urls] + [{"image": b64encode(PNG).decode()}, {"image": 5}]
    flow = prepare_rows(allowed, "application/json", rows, Calls(allowed))
    assert (list(flow.live), [value.image for value in flow.values]) == ([0, 3], [PNG, PNG])
    failed = [(flow.failed[place].code, flow.failed[place].retryable) for place in (1, 2, 4)]
    assert failed == [("input_url_failed", True), ("invalid_input", False), ("invalid_input", False)]


def test_models_without_rules_fetch_nothing(model: Loaded, origin: str) -> None:
    body = {"image": f"{origin}/cat%20a.png"}
    with nothing_asked():
        refused = _read(model, Item("application/json", json.dumps(body).encode()))
        flow = prepare_rows(model, "application/json", [body], Calls(model))
    assert "not fetched from URLs here" in refused.message
    assert "not fetched from URLs here" in flow.failed[0].message


def test_an_unknown_host_has_no_address() -> None:
    assert resolve("no-such-host.invalid", 443) == []
    assert "127.0.0.1" in resolve("localhost", 80)


def test_a_file_that_is_read_elsewhere_is_not_fetched(tmp_path: Path) -> None:
    from penstock import File

    with pytest.raises(InvalidInput, match="not fetched"):
        File.read("https://files.example/a")


@contextmanager
def over_tls(authority: Authority, host: str, *, expired: bool = False) -> Iterator[int]:
    """A server with a certificate for `host`; its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pictures)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue(host, expired=expired))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def over(host: str, port: int, ca: str) -> UrlFetcher:
    return UrlFetcher([f"https://{host}:{port}/"], 20.0, ca=ca, resolve=lambda host, port: ["127.0.0.1"])


def test_a_server_with_a_certificate_of_an_own_authority_is_read_where_the_settings_name_that(
    model: Loaded, tmp_path: Path
) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    with over_tls(ours, "files.test") as port:
        url = f"https://files.test:{port}/cat%20a.png"
        assert one(model, over("files.test", port, str(ours.file)), url).image == PNG
        with nothing_asked():
            for ca in ("", str(other.file)):
                found = one(model, over("files.test", port, ca), url)
                assert (found.code, found.retryable) == ("invalid_input", False)
                assert "the certificate of files.test is not trusted" in found.message
                assert "input_urls_ca" in found.message


@pytest.mark.parametrize(
    ("host", "expired", "said"), [("else.test", False, "Hostname mismatch"), ("files.test", True, "certificate has expired")]
)
def test_a_wrong_certificate_is_named(model: Loaded, tmp_path: Path, host: str, expired: bool, said: str) -> None:
    ours = Authority(tmp_path)
    with over_tls(ours, host, expired=expired) as port, nothing_asked():
        found = one(model, over("files.test", port, str(ours.file)), f"https://files.test:{port}/cat%20a.png")
    assert (found.code, said in found.message) == ("invalid_input", True), found.message


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_file_without_certificates_fails_the_load(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "ca.pem").write_text(text)
    with pytest.raises(HandlerLoadError, match="input_urls_ca: no certificates can be read"):
        trust(str(tmp_path / "ca.pem"))


async def test_a_url_that_the_settings_do_not_allow_is_refused_and_the_message_says_what_to_send() -> None:
    with pytest.raises(InvalidInput, match="send the file in a form"):
        await UrlFetcher(("https://files.example/",), 1.0).addresses(parse_url("https://other.example/a.png"))
