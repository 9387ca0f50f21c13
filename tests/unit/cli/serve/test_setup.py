from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from penstock.cli.exits import StartError
from penstock.cli.serve import setup
from penstock.cli.serve.up import processes_of
from penstock.errors import ConfigError
from penstock.settings.keys import local_url
from penstock.settings.tables import Settings


def test_models_of_the_command_line_travel_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / "square.py").write_text("")
    chosen = setup.serve_setup(["square.py"], config=None, flags={}, slots=3, environ={}, folder=tmp_path)
    spec = chosen.settings.specs()[0]
    assert (spec.name, spec.source, spec.slots) == ("square", f"{tmp_path}/square.py", 3)
    assert json.loads(chosen.env["PENSTOCK_MODELS"]) == {"square": {"source": f"{tmp_path}/square.py", "slots": 3}}


def test_slots_override_those_of_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[models.square]\nsource = "square.py"\nslots = 1\n')
    chosen = setup.serve_setup([], config=None, flags={}, slots=3, environ={}, folder=tmp_path)
    assert chosen.settings.specs()[0].slots == 3
    assert chosen.env["PENSTOCK_CONFIG"] == str(tmp_path / "penstock.toml")


def test_a_flag_wins_over_the_environment_and_reaches_the_children(tmp_path: Path) -> None:
    environ = {"PENSTOCK_GATEWAY__PORT": "9000", "PENSTOCK_GATEWAY__HOST": "127.0.0.2"}
    flags = {"gateway.port": 9100, "gateway.host": None}
    chosen = setup.serve_setup([], config=None, flags=flags, environ=environ, folder=tmp_path)
    assert (chosen.settings.gateway.port, chosen.settings.gateway.host) == (9100, "127.0.0.2")
    assert chosen.env["PENSTOCK_GATEWAY__PORT"] == "9100"


@pytest.mark.parametrize(("fsync", "required"), [("always", "fsync"), ("everysec", "no_eviction")])
def test_a_worker_knows_that_its_own_store_syncs_each_write(tmp_path: Path, fsync: str, required: str) -> None:
    chosen = setup.serve_setup([], config=None, flags={"store.fsync": fsync}, environ={}, folder=tmp_path)
    [worker] = processes_of(chosen, 1, {"worker": "unix:///store"}).values()
    assert Settings.load(env=worker.env).store.require == required


def test_a_fault_of_a_flag_is_not_told_as_one_of_a_variable(tmp_path: Path) -> None:
    """Regression: `--redis-url localhost` was a fault of PENSTOCK_STORE__URL, which nobody had set."""
    with pytest.raises(ConfigError) as caught:
        setup.serve_setup([], config=None, flags={"store.url": "localhost:6379"}, environ={}, folder=tmp_path)
    [fault] = caught.value.faults
    assert fault.endswith("(from flag)")


def test_all_faults_of_the_settings_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[gateway]\nport = -1\nhots = 'x'\n")
    with pytest.raises(ConfigError) as caught:
        setup.serve_setup([], config=None, flags={}, environ={}, folder=tmp_path)
    assert len(caught.value.faults) == 2


def test_nothing_to_serve_says_what_to_name(tmp_path: Path) -> None:
    chosen = setup.serve_setup([], config=None, flags={}, environ={}, folder=tmp_path)
    with pytest.raises(ConfigError) as caught:
        setup.need_models(chosen.settings)
    assert "penstock up" in str(caught.value.hint)


def test_the_store_is_named_by_one_variable_only() -> None:
    env = {"PENSTOCK_REDIS_URL_FILE": "/run/secrets/url", "PENSTOCK_STORE__URL": "redis://a", "KEEP": "1"}
    assert setup.with_store(env, "redis://b") == {"KEEP": "1", "PENSTOCK_REDIS_URL": "redis://b"}


def test_a_taken_port_is_named_with_the_flag_to_change_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=str(port)) as caught:
            setup.free_port("127.0.0.1", port)
    assert "--port" in str(caught.value.hint)


def test_port_zero_takes_a_free_one() -> None:
    assert setup.free_port("127.0.0.1", 0) > 0


@pytest.mark.parametrize(("host", "url"), [("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1"), ("h", "http://h:1")])
def test_a_gateway_on_all_addresses_is_reached_by_loopback(host: str, url: str) -> None:
    assert local_url(host, 1) == url


def test_a_task_of_the_command_line_goes_to_the_models_named_there(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"")
    chosen = setup.serve_setup(["net.onnx"], config=None, flags={}, task="segmentation", environ={}, folder=tmp_path)
    assert chosen.settings.specs()[0].task == "segmentation"
    with pytest.raises(ConfigError, match="task"):
        setup.serve_setup(["net.onnx"], config=None, flags={}, task="sorting", environ={}, folder=tmp_path)
    (tmp_path / "penstock.toml").write_text('[models.net]\nsource = "net.onnx"\n')
    with pytest.raises(ConfigError, match="--task applies only to a model file"):
        setup.serve_setup([], config=None, flags={}, task="segmentation", environ={}, folder=tmp_path)
