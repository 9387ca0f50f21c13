"""The example of a reverse proxy, run by a real nginx with the addresses of a test in it."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from penstock.loadtest.stack import free_port
from tests.certificates import Authority
from tests.eventually import eventually

EXAMPLE = Path(__file__).parents[2] / "compose" / "nginx" / "penstock.conf"
# Debian's package puts it where only root's path leads.
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
MAIN = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/proxied;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/penstock.conf;
}}
"""


@dataclass(frozen=True)
class Proxy:
    """Where it listens, and what its clients trust."""

    port: int
    trust: ssl.SSLContext

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def transport(self) -> httpx2.HTTPTransport:
        return httpx2.HTTPTransport(verify=self.trust)


def nginx_program() -> str:
    """Path of an installed nginx. Without one the test is skipped, or fails if PENSTOCK_TEST_NGINX=required."""
    found = shutil.which("nginx", path=PATH)
    if found is None and os.environ.get("PENSTOCK_TEST_NGINX") == "required":
        pytest.fail("no nginx on the path, and PENSTOCK_TEST_NGINX=required")
    if found is None:
        pytest.skip("no nginx on the path: apt-get install nginx")
    return found


def example_for(gateways: Sequence[str], *, port: int, certificate: Path) -> str:
    """The example with these addresses of gateways; everything else stays as it is."""
    text = EXAMPLE.read_text()
    lines = [f"    server {gateway} max_fails=1 fail_timeout=5s;" for gateway in gateways]
    text, servers = re.subn(r"(?m)^    server 10\..*;\n(    server 10\..*;)", "\n".join(lines), text)
    text, listens = re.subn(r"listen 443 ssl http2;", f"listen 127.0.0.1:{port} ssl http2;", text)
    text, files = re.subn(r"/etc/nginx/tls/penstock\.pem", str(certificate), text)
    assert (servers, listens, files) == (1, 1, 2)
    return text.replace("server_name models.example;", "server_name localhost;")


@contextmanager
def nginx(folder: Path, gateways: Sequence[str]) -> Iterator[Proxy]:
    program, port, authority = nginx_program(), free_port(), Authority(folder)
    (folder / "penstock.conf").write_text(example_for(gateways, port=port, certificate=authority.issue("localhost")))
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
    if os.getuid() == 0:
        # Else the workers would be of another user, who cannot write into this folder.
        (folder / "nginx.conf").write_text("user root;" + (folder / "nginx.conf").read_text())
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")])
    proxy = Proxy(port, ssl.create_default_context(cafile=str(authority.file)))
    try:
        with httpx2.Client(base_url=proxy.url, transport=proxy.transport()) as client:
            eventually(lambda: _answers(client))
        yield proxy
    finally:
        process.terminate()
        process.wait(20.0)


def _answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/livez").status_code == 200
    except httpx2.TransportError:
        return False
