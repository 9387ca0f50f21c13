"""URLs that callers name: which of them the settings allow, and which addresses are public. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from penstock.errors import InvalidInput

# A rule for https URLs of every host that has public addresses only.
ANYWHERE = "*"
MAX_URL_CHARS = 2_048
_PLAIN = re.compile(r"[!-\[\]-~]+")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")
_PORTS = {"https": 443, "http": 80}
# An IPv6 address in here stands for an IPv4 address that a gateway elsewhere reaches (RFC 6052, RFC 8215).
_TRANSLATED = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
# Python counts these among the global addresses: those of protocols (RFC 6890), relays of 6to4 (RFC 7526), and the address at
# which the machines of one provider reach their host.
_OF_INFRASTRUCTURE = tuple(map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")))


@dataclass(frozen=True, slots=True)
class CheckedUrl:
    """The parts of a URL. Requests are built from these and not from the text, which two readers may take apart differently.

    `host` is in lower case and without brackets.
    """

    scheme: str
    host: str
    port: int
    # The path with the query.
    target: str

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        """Without its query, which may hold a key."""
        return f"{self.scheme}://{self.netloc}{self.target.partition('?')[0]}"


def parse_url(text: str) -> CheckedUrl:
    """Raises `InvalidInput` for all but a plain http or https URL in ASCII, without a login."""
    if len(text) > MAX_URL_CHARS or not _PLAIN.fullmatch(text):
        raise InvalidInput(f"a URL has at most {MAX_URL_CHARS} characters of ASCII, without spaces and backslashes")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"the URL cannot be read: {error}") from error
    scheme, host = parts.scheme.lower(), parts.netloc.rpartition(":")[0] if port is not None else parts.netloc.rstrip(":")
    if scheme not in _PORTS or not _HOST.fullmatch(host) or port == 0:
        raise InvalidInput("a URL is written https://host/path, without a login")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if "/." in parts.path or "%2e" in parts.path.lower():
        raise InvalidInput("the path of a URL may hold no segment that begins with a dot")
    return CheckedUrl(scheme, host.strip("[]").lower(), port or _PORTS[scheme], target)


def rule_fault(rule: str) -> str:
    """Why this is no rule for URLs; empty if it is one."""
    if rule == ANYWHERE:
        return ""
    try:
        url = parse_url(rule)
    except InvalidInput as error:
        return error.message
    return (
        "" if "?" not in url.target and url.target.endswith("/") else 'a rule ends with a slash, as in "https://host/pictures/"'
    )


def is_listed(url: CheckedUrl, rules: Sequence[str], *, refusal: str) -> bool:
    """Whether a rule names the URL's host: it may have any address. False: only public ones.

    Raises `InvalidInput` for a URL that no rule allows; `refusal` says so, with "{url}" for the URL.
    """
    for listed in (parse_url(rule) for rule in rules if rule != ANYWHERE):
        if url.origin == listed.origin and url.target.startswith(listed.target):
            return True
    if ANYWHERE not in rules:
        raise InvalidInput(refusal.format(url=url))
    if (url.scheme, url.port) != ("https", _PORTS["https"]):
        raise InvalidInput(f"{url} is not called: only https on its usual port is")
    return False


def is_public(address: str) -> bool:
    """Whether the address is reachable on the public internet. Addresses that stand for others are not public."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return _is_global(ip.ipv4_mapped)
        if ip.sixtofour is not None or ip.teredo is not None or any(ip in network for network in _TRANSLATED):
            return False
    return _is_global(ip)


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    if any(address in network for network in _OF_INFRASTRUCTURE):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)
