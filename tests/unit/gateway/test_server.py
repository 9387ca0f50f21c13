from __future__ import annotations

import pytest

from penstock.gateway.server import log_renderer

ESCAPE = "\x1b["


@pytest.mark.parametrize(("no_color", "coloured"), [("1", False), ("", True)])
def test_the_log_on_a_terminal_is_coloured_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch, no_color: str, coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    line = log_renderer(terminal=True)(None, "info", {"event": "gateway_ready", "level": "info"})
    assert "gateway_ready" in line
    assert (ESCAPE in line) is coloured


def test_the_log_elsewhere_is_json() -> None:
    assert log_renderer(terminal=False)(None, "info", {"event": "gateway_ready"}) == '{"event": "gateway_ready"}'
