"""Async handlers in the runner: every item is a task of its own, and nobody waits for a neighbour's fault."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Failure
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.workers.child import runner
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.runner import run_batch
from penstock.workers.child.shards import rows
from penstock.workers.ipc.frames import Failed, Item, Outcome, Output

ASYNC = """
    import asyncio
    import penstock

    class Mine(penstock.Handler):
        async def initialize(self, context):
            await asyncio.sleep(0)
            self.context, self.loop = context, asyncio.get_running_loop()
            self.together = self.most = 0
            self.met = asyncio.Event()

        async def inference(self, batch: list[str]) -> list[str]:
            [item] = batch
            self.together += 1
            self.most = max(self.most, self.together)
            try:
                return [await self.one(item)]
            finally:
                self.together -= 1
"""


@pytest.fixture(autouse=True)
def _modules_restored() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("penstock_model_"):
            del sys.modules[name]


def made(folder: Path, text: str, **given: int) -> Loaded:
    path = folder / "mine.py"
    path.write_text(dedent(text))
    return load(str(path), "mine", **given)  # type: ignore[arg-type]


def handler(folder: Path, one: str, head: str = "", **given: int) -> Loaded:
    """A handler whose coroutine `one` says what becomes of an item."""
    body = "\n".join(f"        {line}" for line in dedent(one).strip().splitlines())
    text = dedent(ASYNC).replace("penstock.Handler):\n", f"penstock.Handler):\n    {head}\n")
    return made(folder, f"{text}\n    async def one(self, item):\n{body}\n", **given)


def outcomes(loaded: Loaded, *items: str) -> list[Outcome]:
    return run_batch(loaded, [Item("application/json", f'"{item}"'.encode()) for item in items]).outcomes


def texts(found: list[Outcome]) -> list[str]:
    return [one.data.decode() if isinstance(one, Output) else f"{one.code}: {one.message}" for one in found]


def test_items_that_wait_for_each_other_end_because_all_run_at_once(tmp_path: Path) -> None:
    loaded = handler(tmp_path, "self.met.set() if item == 'c' else await self.met.wait()\nreturn item.upper()")
    assert texts(outcomes(loaded, "a", "b", "c")) == ['"A"', '"B"', '"C"']
    assert loaded.handler.most == 3  # type: ignore[attr-defined]


def test_initialize_and_inference_share_one_loop(tmp_path: Path) -> None:
    loaded = handler(tmp_path, "return str(asyncio.get_running_loop() is self.loop)")
    assert texts(outcomes(loaded, "a")) == texts(outcomes(loaded, "a")) == ['"True"']


def test_an_item_that_raises_fails_alone_and_no_call_is_repeated(tmp_path: Path) -> None:
    loaded = handler(
        tmp_path,
        """
        self.seen = [*getattr(self, "seen", []), item]
        if item == "bad": raise ConnectionError("gone")
        if item == "poor": return penstock.Failure("too poor", "poor")
        return item
        """,
    )
    assert texts(outcomes(loaded, "a", "bad", "poor", "b")) == [
        '"a"',
        "handler_error: ConnectionError: gone",
        "poor: too poor",
        '"b"',
    ]
    assert loaded.handler.seen == ["a", "bad", "poor", "b"]  # type: ignore[attr-defined]
    [failed] = outcomes(loaded, "bad")
    assert isinstance(failed, Failed)
    # `retry_on` may name the class of the error or one of its bases.
    assert failed.kinds[:2] == ("ConnectionError", "OSError")


def test_no_more_run_at_once_than_the_handler_says(tmp_path: Path) -> None:
    loaded = handler(tmp_path, "await asyncio.sleep(0)\nreturn item", "max_concurrency = 2")
    assert len(outcomes(loaded, *"abcdef")) == 6
    assert loaded.handler.most == 2  # type: ignore[attr-defined]


class Caller:
    """A reporter for which somebody gives up one item after a while."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.told: list[tuple[int, float]] = []

    def progressed_at(self, batch: int, place: int) -> float:
        return float("-inf")

    def begin(self, batch: int) -> None: ...

    def facts(self, batch: int) -> list[object]:
        return []

    def progress(self, batch: int, place: int, fraction: float, note: str) -> None:
        self.told.append((place, fraction))

    def is_unwanted(self, batch: int, place: int) -> bool:
        return place == self.place

    def restart(self, batch: int, place: int) -> None: ...

    def chunk(self, batch: int, place: int, data: bytes) -> None: ...


def running(loaded: Loaded, reporter: Caller, *items: str) -> list[Outcome]:
    """The items as a batch that a supervisor gave."""
    loaded.context.running.reporter = reporter
    calls = Calls(loaded)
    flow = runner.prepare(loaded, [Item("application/json", f'"{item}"'.encode()) for item in items], calls)
    flow.batch = 1
    runner.infer(loaded, flow, calls)
    return runner.complete(loaded, flow).outcomes


def test_an_item_that_nobody_wants_any_more_is_stopped_and_its_neighbours_go_on(tmp_path: Path) -> None:
    loaded = handler(tmp_path, "await asyncio.Event().wait() if item == 'hangs' else None\nreturn item")
    found = running(loaded, Caller(1), "a", "hangs", "b")
    assert texts(found) == ['"a"', "cancelled: its run was stopped, because its output is no longer wanted", '"b"']


def test_an_item_that_runs_for_too_long_fails_alone_before_the_process_is_ended(tmp_path: Path) -> None:
    loaded = handler(tmp_path, "await asyncio.Event().wait() if item == 'hangs' else None\nreturn item")
    loaded.context.running.max_run_s = 0.01
    assert texts(outcomes(loaded, "a", "hangs")) == ['"a"', "timeout: it ran for more than four fifths of max_run_s"]


def test_each_task_sees_its_own_item(tmp_path: Path) -> None:
    loaded = handler(
        tmp_path,
        "await asyncio.sleep(0)\nself.context.progress(ord(item) / 128)\nreturn str(len(self.context.items))",
    )
    caller = Caller(-1)
    assert texts(running(loaded, caller, "@", "`")) == ['"1"', '"1"']
    assert sorted(caller.told) == [(0, 0.5), (1, 0.75)]


def test_what_holds_up_the_loop_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loaded = handler(tmp_path, "import time\ntime.sleep(0.7) if item == 'blocks' else None\nreturn item")
    outcomes(loaded, "a", "b")
    assert capfd.readouterr().err == ""
    outcomes(loaded, "blocks", "b")
    outcomes(loaded, "blocks")
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("Mine held up its event loop for 0.")
    assert "asyncio.to_thread" in line


def test_an_async_function_is_a_model_of_one_item(tmp_path: Path) -> None:
    loaded = made(
        tmp_path,
        """
        import asyncio
        import penstock

        @penstock.model
        async def double(x: int, context: penstock.Context) -> int:
            await asyncio.sleep(0)
            return 2 * x + len(context.items)
        """,
    )
    done = run_batch(
        loaded, [Item("application/json", b"4"), Item("application/json", b'"four"'), Item("application/json", b"5")]
    )
    assert texts(done.outcomes)[0::2] == ["9", "11"]
    assert texts(done.outcomes)[1].startswith("invalid_input")
    assert done.calls == 1
    assert loaded.output_schema == {"type": "integer"}


def test_rows_of_a_run_are_tasks_as_well_and_metrics_count_them(tmp_path: Path) -> None:
    loaded = made(
        tmp_path,
        """
        import penstock

        @penstock.model
        async def double(x: int, context: penstock.Context) -> int:
            context.metrics.counter("rows").inc()
            return 2 * x
        """,
    )
    calls = Calls(loaded)
    flow = rows.prepare_rows(loaded, "application/json", [1, 2, "three"], calls)
    runner.infer(loaded, flow, calls)
    *good, bad = rows.complete_rows(loaded, flow).outputs
    assert good == [2, 4]
    assert isinstance(bad, Failure)
    assert [(one.name, one.value) for one in loaded.context.metrics.drain()] == [("rows", 2.0)]


def test_the_output_of_a_call_is_a_list_of_one(tmp_path: Path) -> None:
    text = "import penstock\nclass A(penstock.Handler):\n    async def inference(self, batch):\n        return batch[0]\n"
    assert texts(outcomes(made(tmp_path, text), "ab")) == [
        "handler_contract: an async inference gets one item at a time, as a list of one, and returned str; return a list of one"
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@penstock.model(batch=True)\nasync def f(x): return x", "f is async, and an async function takes one item"),
        ("@penstock.model\nasync def f(x): yield x", "f is async and yields"),
        ("class A(penstock.Handler):\n async def inference(self, batch): yield batch", "A.inference is async and yields"),
        (
            "class A(penstock.Handler):\n async def preprocess(self, b): return b\n def inference(self, b): return b",
            "A.preprocess is async; only initialize and inference may be",
        ),
        (
            "class A(penstock.Handler):\n max_concurrency = 2\n def inference(self, batch): return batch",
            "A.max_concurrency = 2:",
        ),
        (
            "class A(penstock.Handler):\n max_concurrency = 0\n async def inference(self, batch): return batch",
            "A.max_concurrency = 0:",
        ),
        (
            "class A(H):\n async def initialize(self, _): raise OSError('gone')\n async def inference(self, _): 0",
            "A could not be loaded on cpu: OSError: gone",
        ),
    ],
)
def test_what_cannot_be_async_is_refused_with_the_way_out(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(HandlerLoadError) as caught:
        made(tmp_path, f"import penstock\nfrom penstock import Handler as H\n{text}\n")
    assert words in caught.value.message


def test_a_model_that_is_not_async_pays_for_no_event_loop(tmp_path: Path) -> None:
    import subprocess

    path = tmp_path / "mine.py"
    path.write_text("import penstock\n@penstock.model\ndef f(x): return x\n")
    program = f"import sys\nfrom penstock.handlers.load import load\nload({str(path)!r}, 'm')\nprint('asyncio' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
