from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.errors import ConfigError
from penstock.extensions.oip.gateway.served import port_in
from penstock.gateway import serving
from penstock.gateway.auth.rules import RouteRules
from penstock.gateway.extending import GatewayPart, RpcPart
from penstock.settings.gateway import GatewaySettings


def test_a_port_without_its_packages_is_refused_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    parts = SimpleNamespace(extensions=[GatewayPart(rpc=RpcPart(port_in, lambda shared: []))], rules=RouteRules())
    gateway: Any = SimpleNamespace(services=None, parts=parts)
    settings: Any = SimpleNamespace(gateway=GatewaySettings(grpc_port=8001))
    with pytest.raises(ConfigError) as refused:
        serving.grpc_ports(gateway, settings, shared=False)
    assert refused.value.hint == "pip install 'penstock-inference[grpc]'"
    off: Any = SimpleNamespace(gateway=GatewaySettings())
    assert serving.grpc_ports(gateway, off, shared=False) == []


def test_a_gateway_that_does_not_serve_grpc_imports_none_of_it() -> None:
    program = (
        "import sys, penstock.gateway.serving; print([n for n in sys.modules if n.startswith(('grpc', 'google.protobuf'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_certificate_comes_with_its_key() -> None:
    with pytest.raises(ValidationError, match="are set together"):
        GatewaySettings(grpc_certificate=Path("a.pem"))
