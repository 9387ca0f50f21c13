from __future__ import annotations

import ast
import importlib.util
import runpy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.catalogue import OWN, PEERS, ComparedServer
from benchmarks.peers.environments import COMMON, DEFINITIONS, absent_reason, set_up
from benchmarks.peers.workloads import ACCELERATOR, ACCELERATOR_100K, EMBEDDINGS, NOOP, inputs_of, is_near, is_right

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples" / "accelerator.py"
SCRIPTS = sorted(DEFINITIONS.glob("*/*.py"))


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"test_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_definitions_compile(path: Path) -> None:
    compile(path.read_text(), str(path), "exec")


def test_every_peer_has_a_definition_and_pins_what_it_names() -> None:
    for peer in PEERS:
        assert (DEFINITIONS / peer.package / "start.py").exists()
        if not peer.is_own:
            named = (DEFINITIONS / peer.name / "requirements.txt").read_text().split()
            assert all("==" in line for line in named)
            assert any(line.startswith(peer.package) for line in named)


def test_the_page_tells_every_servers_settings_and_where_its_documentation_recommends_them() -> None:
    page = (ROOT / "docs" / "why" / "peers.md").read_text()
    for peer in PEERS:
        assert f"| {peer.title} | {peer.settings} | {peer.source} |" in page


def test_the_modules_import_no_definition() -> None:
    folders = {path.parent.name for path in SCRIPTS}
    for path in DEFINITIONS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("benchmarks.peers"):
                assert not folders & set(node.module.split(".")[3:])


def test_the_accelerator_keeps_the_pace_of_the_example() -> None:
    functions, example = module(COMMON / "functions.py"), runpy.run_path(str(EXAMPLE))
    assert example["START_S"] == functions.START_S
    assert example["ITEM_S"] == functions.ITEM_S


@pytest.mark.parametrize("workload", [NOOP, ACCELERATOR, ACCELERATOR_100K])
def test_the_functions_answer_rightly_and_a_wrong_answer_is_seen(workload: str) -> None:
    items = inputs_of(workload) * 2
    answers = module(COMMON / "functions.py").function_of(workload, Path())(items)
    assert all(is_right(workload, item, answer, []) for item, answer in zip(items, answers, strict=True))
    assert not is_right(workload, items[0], {**answers[0], "y": 17, "length": 1}, [])


def test_a_vector_is_right_when_it_is_near() -> None:
    item = inputs_of(EMBEDDINGS)[0]
    assert is_right(EMBEDDINGS, item, {"embedding": [0.1, 0.2]}, [[0.10001, 0.2]])
    assert not is_right(EMBEDDINGS, item, {"embedding": [0.1, 0.3]}, [[0.1, 0.2]])
    assert not is_near([0.1], [0.1, 0.2])


def test_a_peer_that_is_not_there_says_what_to_do_and_one_that_failed_says_why(tmp_path: Path) -> None:
    mosec = next(peer for peer in PEERS if peer.name == "mosec")
    assert "setup mosec" in absent_reason(tmp_path, mosec)
    (tmp_path / "mosec").mkdir()
    (tmp_path / "mosec" / "failed.txt").write_text("no wheel\n")
    assert absent_reason(tmp_path, mosec) == "no wheel"
    java = ComparedServer("mosec", "x", "mosec", "/", "", "", commands=("no-such-command",))
    assert absent_reason(tmp_path, java) == "needs no-such-command on the path"
    own = next(peer for peer in PEERS if peer.name == OWN)
    assert absent_reason(tmp_path, own) == ""
    assert set_up(tmp_path, own, print)
