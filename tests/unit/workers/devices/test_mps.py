from __future__ import annotations

from pathlib import Path

import pytest

from penstock.workers.devices import mps


class Daemon:
    """Answers as `nvidia-cuda-mps-control` does; `orders` are those that it was given."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.orders: list[str] = []

    def ask(self, order: str) -> str:
        self.orders.append(order)
        return self.servers if order == "get_server_list" else ""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for pid, name in ((11, "nvidia-cuda-mps-server"), (12, "postgres")):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "comm").write_text(f"{name[:15]}\n")
    return tmp_path


def test_a_client_is_ended_by_its_server_before_it_is_killed(root: Path) -> None:
    daemon = Daemon("11\n")
    mps.end_client(77, daemon.ask, root)
    assert daemon.orders == ["get_server_list", "terminate_client 11 77"]


@pytest.mark.parametrize("servers", ["", "12\n", "13\n", "Failed to connect\n"])
def test_a_daemon_whose_numbers_mean_other_processes_is_given_no_order(root: Path, servers: str) -> None:
    daemon = Daemon(servers)
    mps.end_client(77, daemon.ask, root)
    assert daemon.orders == ["get_server_list"]


def test_without_the_daemon_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    mps.end_client(77)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not mps.is_used()
    (tmp_path / "control").touch()
    assert mps.is_used()
