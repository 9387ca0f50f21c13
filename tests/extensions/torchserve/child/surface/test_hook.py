"""What `import ts` finds in the process of an archive."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from penstock.extensions.torchserve.child.surface.hook import builtin_class, install
from penstock.extensions.torchserve.child.surface.names import BUILTINS, LEFT_OUT, MODULES, location_of
from tests.markdown import ROOT

NAMES = [(module, name) for module, names in MODULES.items() for name in names]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_each_name_is_what_the_table_says(module: str, name: str, ts: None) -> None:
    location = location_of(module, name)
    assert location is not None
    assert getattr(import_module(module), name) is getattr(import_module(location[0]), location[1])


def test_the_imports_of_public_handlers_work(ts: None) -> None:
    from ts.handler_utils.timer import timed  # type: ignore[import-not-found]
    from ts.metrics.dimension import Dimension  # type: ignore[import-not-found]
    from ts.metrics.metric_type_enum import MetricTypes  # type: ignore[import-not-found]
    from ts.torch_handler.base_handler import BaseHandler  # type: ignore[import-not-found]
    from ts.utils.util import list_classes_from_module  # type: ignore[import-not-found]

    assert issubclass(BaseHandler, object)
    assert (timed.__name__, Dimension("a", 1).name, MetricTypes("gauge").name) == ("timed", "a", "GAUGE")
    assert list_classes_from_module.__name__ == "list_classes_from_module"


def test_a_module_is_found_through_its_package_and_by_a_star(ts: None) -> None:
    space: dict[str, object] = {}
    exec("import ts\nfrom ts.torch_handler import base_handler\nfrom ts.metrics.dimension import *", space)
    assert getattr(space["base_handler"], "BaseHandler", None) is space["ts"].torch_handler.base_handler.BaseHandler  # type: ignore[attr-defined]
    assert "Dimension" in space
    assert space["ts"].__version__ == "0.12.0"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import ts.torch_handler.nothing", r"ts\.torch_handler has the modules base_handler.*docs/reference/torchserve\.md"),
        ("from ts.utils.util import nothing", r"ts\.utils\.util has no nothing; it has PredictionException, check_valid"),
        ("from ts.torch_handler import vllm_handler", r"no ts\.torch_handler\.vllm_handler: scheduling by tokens belongs"),
        ("from ts.torch_handler.distributed.base_pippy_handler import X", "one process per slot"),
        ("from ts.handler_utils.micro_batching import MicroBatching", "set the batch size instead"),
        ("import ts\nts.nothing", r"penstock's ts has no nothing; it has .*torch_handler"),
    ],
)
def test_a_name_that_is_not_there_is_an_import_error_that_says_what_is(code: str, said: str, ts: None) -> None:
    with pytest.raises(ImportError, match=said):
        exec(code)


def test_the_page_lists_every_name() -> None:
    page = (ROOT / "docs" / "reference" / "torchserve.md").read_text("utf-8").partition("## What handlers import")[2]
    table = page.partition("**BaseHandler**")[0]
    for module, name in NAMES:
        assert f"`{name}`" in table, name
        assert f"{module.rpartition('.')[2]}`" in table, module
    assert all(f"`{name}`" in page for name in BUILTINS)


def test_what_is_left_out_is_not_offered() -> None:
    assert not set(LEFT_OUT) & set(MODULES)


def test_tools_may_ask_modules_for_names_of_pythons_own(ts: None) -> None:
    assert getattr(import_module("ts.utils.util"), "__wrapped__", None) is None


def test_a_torchserve_that_was_imported_before_is_replaced(ts: None) -> None:
    ours = import_module("ts")
    del sys.meta_path[0]
    sys.modules["ts"] = import_module("json")
    install()
    assert import_module("ts") is not ours
    assert import_module("ts").__version__ == "0.12.0"
    install()
    assert sum(type(finder).__name__ == "TorchServeFinder" for finder in sys.meta_path) == 1


def test_without_the_hook_nothing_of_ours_is_called_ts() -> None:
    assert find_spec("ts") is None


def test_built_in_handlers_are_found_by_name(ts: None) -> None:
    for name, kind in BUILTINS.items():
        found = builtin_class(name)
        assert found is not None
        assert found.__name__ == kind
    assert builtin_class("nothing") is None


@pytest.fixture
def loaded() -> set[str]:
    """Return which modules a process has loaded that asked for every name outside `torch_handler`."""
    code = (
        "import sys; from penstock.extensions.torchserve.child.surface.hook import install; install()\n"
        "from ts.handler_utils.timer import timed; from ts.handler_utils.utils import import_class\n"
        "from ts.metrics.metric import Metric; from ts.utils.util import load_label_mapping, check_valid_pt2_backend\n"
        "from ts.torch_handler.base_handler import BaseHandler\n"
        "print(*sys.modules)"
    )
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_no_library_is_loaded_before_a_stage_needs_it(loaded: set[str]) -> None:
    assert not loaded & {"torch", "numpy", "PIL", "onnxruntime", "torchvision", "captum"}
