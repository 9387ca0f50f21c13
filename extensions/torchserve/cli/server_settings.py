"""Translates the keys of config.properties that concern the whole server. Pure. Every key is in the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.distribution import install_hint
from penstock.extensions.torchserve.archives.parity import Parity, SettingParity, TranslatedSettings
from penstock.extensions.torchserve.cli.server_keys import IGNORED, OF_MODELS
from penstock.settings.keys import is_loopback
from penstock.words import MASK

_ADDRESS = re.compile(r"(https?)://(\[[0-9A-Fa-f:]+\]|[^:/]+)(?::(\d{1,5}))?/?")
_NO_PORT = "it must be a port; the default took its place"
_RPC_PORTS = {"inference": 7070, "management": 7071}
_PORTS = {"inference": 8080, "management": 8081, "metrics": 8082}
_TLS = "penstock speaks no TLS; put a proxy with the certificate before it, as docs/production/deploy.md says"
_TOKENS = "disable_token_authorization"
KEY_FILE = "key_file.json"


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(slots=True)
class _Translation:
    """`folder`: where the server is started; relative paths are relative to it, and tokens are written there."""

    properties: Mapping[str, str]
    folder: Path
    values: dict[str, Any]
    report: list[SettingParity]

    def put(self, key: str, ours: Mapping[str, Any], *, parity: Parity = Parity.HONOURED, why: str = "") -> None:
        self.values |= ours
        shown = ", ".join(f"{name} = {toml_value(value)}" for name, value in ours.items())
        self.note(key, parity, ours=shown, why=why)

    def note(self, key: str, parity: Parity, *, ours: str = "", why: str = "") -> None:
        if key in self.properties:
            value = MASK if "pass" in key else self.properties[key]
            self.report.append(SettingParity(key, value, parity, ours, why))


def server_settings(properties: Mapping[str, str], folder: Path, *, has_grpc: bool = True) -> TranslatedSettings:
    """Settings by dotted path, `gateway.port`; keys that concern models are left to `startup_models`. `has_grpc`: whether the
    extra is installed that gRPC needs.
    """
    translation = _Translation(properties, folder, {"torchserve.enabled": True, "torchserve.metrics": True}, [])
    _addresses(translation)
    _tokens(translation)
    _rpc_ports(translation, has_grpc=has_grpc)
    for key in properties:
        if key in RULES:
            _by_rule(translation, key)
        elif key in IGNORED:
            translation.note(key, Parity.IGNORED, why=IGNORED[key])
        elif key not in OF_MODELS and key not in HANDLED:
            translation.note(key, Parity.IGNORED, why="TorchServe 0.12 has no setting of this name")
    return TranslatedSettings(translation.values, translation.report)


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    return f'"{value}"' if isinstance(value, (str, Path)) else f"{value}"


# Addresses: three listeners, of which the second and third may be the first.


def _addresses(translation: _Translation) -> None:
    addresses = {name: _address(translation, name) for name in _PORTS}
    first = addresses["inference"]
    translation.put(
        "inference_address", {"gateway.host": first.host, "gateway.port": first.port}, **_tls(translation, "inference")
    )
    management = addresses["management"]
    own = {"torchserve.management_host": management.host, "torchserve.management_port": management.port}
    translation.put(
        "management_address",
        own if management != first else {"torchserve.management_port": 0},
        **_tls(translation, "management"),
    )
    _metrics(translation, addresses)


def _metrics(translation: _Translation, addresses: Mapping[str, Address]) -> None:
    metrics = addresses["metrics"]
    if translation.properties.get("enable_metrics_api", "").lower() == "false":
        translation.put("enable_metrics_api", {"gateway.metrics_port": 0}, why="/metrics stays at the first address")
        translation.note("metrics_address", Parity.HONOURED, why="it is switched off by enable_metrics_api")
        return
    translation.note("enable_metrics_api", Parity.HONOURED)
    if metrics in (addresses["inference"], addresses["management"]):
        why = "" if metrics == addresses["inference"] else "metrics are at the address of inference"
        translation.put(
            "metrics_address", {"gateway.metrics_port": 0}, parity=Parity.CHANGED if why else Parity.HONOURED, why=why
        )
        return
    own = {"gateway.metrics_host": metrics.host, "gateway.metrics_port": metrics.port}
    translation.put("metrics_address", own, **_tls(translation, "metrics"))


def _address(translation: _Translation, name: str) -> Address:
    key = f"{name}_address"
    default = Address("127.0.0.1", _PORTS[name])
    written = translation.properties.get(key)
    if written is None:
        return default
    read = _ADDRESS.fullmatch(written.strip())
    if read is None or int(read[3] or 0) > 65_535:
        return default
    return Address(read[2].strip("[]"), int(read[3] or (443 if read[1] == "https" else 80)))


def _tls(translation: _Translation, name: str) -> dict[str, Any]:
    """How an address is reported: as honoured, or with the part that penstock does not serve."""
    written = translation.properties.get(f"{name}_address", "").strip()
    if written and not _ADDRESS.fullmatch(written):
        return {
            "parity": Parity.CHANGED,
            "why": "it must be http://host:port; TorchServe's default took its place",
        }
    return {"parity": Parity.CHANGED, "why": _TLS} if written.startswith("https:") else {}


def _rpc_ports(translation: _Translation, *, has_grpc: bool) -> None:
    for door, default in _RPC_PORTS.items():
        key = f"grpc_{door}_port"
        written = translation.properties.get(key, str(default)).strip()
        if not has_grpc:
            translation.note(key, Parity.IGNORED, why=f"gRPC needs a package: {install_hint('grpc')}")
        elif not written.isdecimal() or int(written) > 65_535:
            translation.put(key, {f"torchserve.{key}": default}, parity=Parity.CHANGED, why=_NO_PORT)
        else:
            translation.put(key, {f"torchserve.{key}": int(written)})


def _tokens(translation: _Translation) -> None:
    """TorchServe asks for tokens unless told otherwise; on loopback penstock asks for none unless told to."""
    written = translation.properties.get(_TOKENS, "").strip().lower()
    hosts = {translation.values["gateway.host"], translation.values.get("torchserve.management_host", "127.0.0.1")}
    is_local = all(map(is_loopback, hosts))
    path = {"torchserve.key_path": str(translation.folder / KEY_FILE)}
    if written == "false" or (not written and not is_local):
        translation.put(_TOKENS, path)
    elif written == "true" and not is_local:
        why = "a gateway that others can reach needs keys: delete the line, or write [[keys]] (`penstock keys new NAME --toml`)"
        translation.note(_TOKENS, Parity.CHANGED, why=why)
    else:
        translation.note(_TOKENS, Parity.HONOURED, why="no token is asked for on loopback")


# Single settings.


@dataclass(frozen=True, slots=True)
class _PropertyRule:
    """`read` turns text and folder into our value, or raises `ValueError` that says what the text must be."""

    ours: tuple[str, ...]
    read: Callable[[str, Path], Any]
    why: str = ""
    parity: Parity = Parity.HONOURED


def _by_rule(translation: _Translation, key: str) -> None:
    rule = RULES[key]
    try:
        value = rule.read(translation.properties[key].strip(), translation.folder)
    except ValueError as fault:
        return translation.note(key, Parity.IGNORED, why=f"it must be {fault}")
    if value is None:
        return translation.note(key, rule.parity, why=rule.why)
    return translation.put(key, dict.fromkeys(rule.ours, value), parity=rule.parity, why=rule.why)


def whole(text: str, _: Path = Path()) -> int:
    """A count from a property. Raises `ValueError`."""
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise ValueError("a whole number of 1 or more")
    return int(text)


def switch(text: str, _: Path = Path()) -> bool:
    """As Java reads it: anything but true is false."""
    return text.lower() == "true"


def _minutes(text: str, _: Path) -> int:
    return whole(text) * 60


def _texts(text: str, _: Path) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _patterns(text: str, folder: Path) -> list[str]:
    patterns = _texts(text, folder)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as fault:
            raise ValueError(f"regular expressions with commas between them ({pattern}: {fault})") from None
    return patterns


def _origins(text: str, folder: Path) -> list[str]:
    origins = [origin.rstrip("/").lower() for origin in _texts(text, folder)]
    if "*" in origins:
        raise ValueError("the origins of the pages that may call; * would open the API to every page that a browser shows")
    return origins


def _pinned(text: str, folder: Path) -> str | None:
    return "cores" if switch(text, folder) else None


def _nothing(text: str, _: Path) -> None:
    """The property needs no setting of penstock."""


def _located(text: str, folder: Path) -> str:
    if not text:
        raise ValueError("the path of a folder")
    return str(folder / Path(text).expanduser())


_ALWAYS = "penstock does so always"
RULES: dict[str, _PropertyRule] = {
    "model_store": _PropertyRule(("torchserve.model_store", "worker.model_dir"), _located),
    "enable_model_api": _PropertyRule(("torchserve.model_api",), switch),
    "allowed_urls": _PropertyRule(("torchserve.allowed_urls",), _patterns),
    "max_request_size": _PropertyRule(("gateway.max_raw_bytes", "gateway.max_json_bytes"), whole),
    "max_response_size": _PropertyRule(("torchserve.max_response_bytes",), whole),
    "cors_allowed_origin": _PropertyRule(("gateway.cors_origins",), _origins),
    "token_expiration_min": _PropertyRule(("torchserve.token_lifetime_s",), _minutes),
    "cpu_launcher_enable": _PropertyRule(
        ("worker.pinning",), _pinned, "penstock pins the processes of models to cores by itself"
    ),
    "ts_open_inference_protocol": _PropertyRule((), _nothing, _ALWAYS),
    "model_metrics_auto_detect": _PropertyRule((), _nothing, "metrics that are not declared are kept too"),
    "metrics_mode": _PropertyRule((), _nothing, "TorchServe's names are on /metrics in every mode"),
    "metrics_format": _PropertyRule((), _nothing, "TorchServe has no other"),
    "enable_envvars_config": _PropertyRule((), _nothing),
}
_ADDRESSES = tuple(f"{door}_address" for door in _PORTS)
_RPC = tuple(f"grpc_{door}_port" for door in _RPC_PORTS)
# Keys that the functions above, and `translation`, take together.
HANDLED = frozenset({*_ADDRESSES, *_RPC, _TOKENS, "enable_metrics_api", "workflow_store"})
