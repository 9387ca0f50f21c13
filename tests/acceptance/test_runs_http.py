"""Runs over HTTP and through the clients, with a fake runner, so that a test can keep a run in any state."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from penstock.broker.run_contract import RunChange
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.client import runs
from penstock.client.aio import AsyncClient
from penstock.client.protocol import HttpCall
from penstock.client.runs import CancelledRuns, RowFailed, RunEnded, RunOptions, RunView
from penstock.client.sync import Client
from penstock.errors import BadRequest, Conflict, Gone, InvalidInput, NotFound
from penstock.gateway.runs.service import _MOST_CANCELLED
from penstock.job import new_serial
from penstock.run import Run, RunCounts, RunSpec, RunState
from tests.acceptance.gateway_process import GatewayClient, gateway_process

MODELS = {
    "square": {"source": "square.py:Square"},
    "told": {"source": "square.py:Square", "request_headers": ["X-Tenant"], "query": ["language"]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def gateway(redis_url: str, folder: Path) -> Iterator[GatewayClient]:
    (folder / "open").mkdir()
    env = {"PENSTOCK_RUNS__ROOTS": str(folder / "open")}
    with gateway_process(redis_url, folder, models=MODELS, env=env) as client:
        yield client


@pytest.fixture(scope="module")
def client(gateway: GatewayClient) -> Iterator[Client]:
    with Client(str(gateway.base_url)) as client:
        yield client


class Runner:
    """A fake runner: it takes runs and squares their inputs; a negative input is an error."""

    def __init__(self, redis_url: str) -> None:
        self.store = RedisStore(redis_url)
        self.runs = RunStore(self.store)

    def tell(self, run_id: str, change: RunChange, *, lease_s: float = 10.0) -> None:
        self.runs.take(run_id, "hand", lease_s=10.0)
        self.runs.update(run_id, "hand", change, lease_s=lease_s)

    def work(self, run: Run) -> None:
        rows = [json.loads(line)["input"] for line in Path(run.spec.input).read_text().splitlines()]
        failed = [row for row, value in enumerate(rows) if value < 0]
        outputs = [None if value < 0 else value * value for value in rows]
        Path(run.spec.output).write_text("".join(json.dumps({"output": output}) + "\n" for output in outputs))
        faults = [{"row": row, "code": "invalid_input", "message": "negative"} for row in failed]
        Path(run.spec.errors).write_text("".join(json.dumps(fault) + "\n" for fault in faults))
        counts = RunCounts(total=len(rows), done=len(rows) - len(failed), failed=len(failed))
        self.tell(run.id, RunChange(state=RunState.COMPLETED, counts=counts, rows_per_s=10.0), lease_s=0.0)


@pytest.fixture(scope="module")
def runner(redis_url: str) -> Iterator[Runner]:
    runner = Runner(redis_url)
    with closing(runner.store):
        yield runner


@contextmanager
def working(redis_url: str, run_id: str) -> Iterator[None]:
    """Within the block, a fake runner in the background completes the run as soon as the run is queued."""
    stop = threading.Event()

    def serve() -> None:
        hand = Runner(redis_url)
        with closing(hand.store):
            while not stop.wait(0.01):
                for run in hand.runs.page(states=[RunState.QUEUED]).runs:
                    if run.id == run_id:
                        hand.work(run)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5.0)


def test_a_retry_of_failed_rows_is_a_run_that_writes_to_the_files_of_the_first(client: Client, redis_url: str) -> None:
    run = client.run("square", [3, -1])
    with pytest.raises(Conflict, match=f"run {run.id} is queued"):
        run.retry_failed()
    with working(redis_url, run.id):
        run.wait(30.0)
    again, twice = (client.send(replace(runs.retry_call(run.id), headers={"idempotency-key": "k"})) for _ in range(2))
    assert runs.run_of(again).id == runs.run_of(twice).id != run.id
    with working(redis_url, runs.run_of(again).id):
        view = client.run_handle(runs.run_of(again).id).wait(30.0)
    assert (view.output, view.errors) == (run.view.output, run.view.errors)
    client.send(HttpCall("DELETE", run.view.output.removesuffix("/content")))
    with pytest.raises(Gone, match=f"the output of run {run.id} is gone"):
        run.retry_failed()


def test_a_run_over_values_gives_one_result_per_value_in_order(client: Client, redis_url: str) -> None:
    seen: list[RunView] = []
    run = client.run("square", (value for value in [3, -1, 5, -2]))
    assert len(run) == 4
    with working(redis_url, run.id):
        view = run.wait(30.0, on_progress=seen.append)
    assert (view.status, view.rows, view.done, view.failed) == ("completed", 4, 2, 2)
    assert seen[-1] == view
    first, second, third, fourth = run
    assert (first, third) == (9, 25)
    assert isinstance(second, RowFailed)
    assert (second.row, second.code, second.message) == (1, "invalid_input", "negative")
    assert isinstance(fourth, RowFailed)
    assert next(iter(client.run_handle(run.id))) == 9


async def test_the_asyncio_client_does_the_same(gateway: GatewayClient, redis_url: str) -> None:
    async with AsyncClient(str(gateway.base_url)) as client:
        run = await client.run("square", [2, -1])
        with working(redis_url, run.id):
            await run.wait(30.0)
        results = [result async for result in run]
    assert (results[0], type(results[1])) == (4, RowFailed)


def test_a_local_file_is_uploaded_and_its_columns_are_named(client: Client, tmp_path: Path, runner: Runner) -> None:
    (tmp_path / "rows.jsonl").write_text('{"x": 1, "id": 7}\n')
    options = RunOptions(columns={"x": "x"}, carry=("id",), max_failed=3, metadata={"team": "data"}, deadline_s=60.0)
    run = client.run("square", str(tmp_path / "rows.jsonl"), options=options)
    made = runner.runs.read(run.id)
    assert made is not None
    spec = made.spec
    assert (spec.columns, spec.carry, spec.max_failed, spec.deadline_s) == ({"x": "x"}, ("id",), 3, 60.0)
    assert Path(spec.input).read_text() == '{"x": 1, "id": 7}\n'
    assert run.view.body["metadata"] == {"team": "data"}
    with pytest.raises(TypeError):
        len(run)
    assert run.cancel().status == "cancelled"
    # A repeat is answered alike: the answer to the first call may have been lost.
    assert run.cancel().status == "cancelled"
    with pytest.raises(RunEnded, match="cancelled"):
        list(run)


def test_a_run_that_ended_otherwise_cannot_be_cancelled(client: Client, runner: Runner) -> None:
    run = client.run("square", [1, 2])
    runner.tell(run.id, RunChange(state=RunState.COMPLETED, counts=RunCounts(total=2, done=2)))
    with pytest.raises(Conflict):
        run.cancel()


def test_progress_is_reported_as_it_goes_and_a_cancel_reaches_the_driver(client: Client, runner: Runner) -> None:
    run = client.run("square", [1, 2])
    counts = RunCounts(total=1_000, done=300, failed=50)
    runner.tell(run.id, RunChange(state=RunState.RUNNING, counts=counts, rows_per_s=65.0, busy=0.5))
    view = run.refresh()
    assert (view.status, view.rows, view.done, view.failed, view.rows_per_s, view.eta_s, view.busy) == (
        "running", 1_000, 300, 50, 65.0, 10.0, 0.5,
    )  # fmt: skip
    assert run.cancel().status == "running"
    assert run.view.body["cancel_requested"]


@pytest.mark.parametrize(
    ("filename", "given", "kind"),
    [
        ("rows.jsonl", "", "jsonl"),
        ("ROWS.CSV", "", "csv"),
        ("t.parquet", "", "parquet"),
        ("rows.jsonl", "text", "text"),
        ("rows", "", ""),
    ],
)
def test_the_format_of_an_uploaded_file_is_that_of_its_name_unless_the_caller_says_it(
    gateway: GatewayClient, runner: Runner, filename: str, given: str, kind: str
) -> None:
    rows = b"x\n1\n" if kind == "csv" else b'{"x": 1}\n'
    uploaded = gateway.post("/v1/files", files={"file": (filename, rows)}, data={"purpose": "user_data"})
    assert uploaded.status_code == 200, uploaded.text
    body = {"model": "square", "input": uploaded.json()["id"], **({"input_format": given} if given else {})}
    made = runner.runs.read(gateway.post("/v1/runs", json=body).json()["id"])
    assert made is not None
    assert made.spec.input_format == kind


def test_a_path_is_taken_below_the_roots_alone(gateway: GatewayClient, folder: Path, tmp_path: Path) -> None:
    good = folder / "open" / "in.jsonl"
    good.write_text("{}\n")
    (folder / "open" / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (tmp_path / "secret.jsonl").write_text("{}\n")
    statuses = {
        given: gateway.post("/v1/runs", json={"model": "square", "input": given}).status_code
        for given in (
            str(good),
            str(folder / "open" / ".." / "keys.toml"),
            str(folder / "open" / "link.jsonl"),
            str(folder / "open" / "none.jsonl"),
            "/etc/passwd",
            "in.jsonl",
            "s3://bucket/x",
            str(folder / "open" / "*.jsonl"),
            "",
            "/\0",
        )
    }
    assert list(statuses.values()) == [202, 422, 422, 404, 422, 422, 400, 400, 422, 400]
    listed = gateway.get("/v1/runs").json()["data"]
    assert listed[0]["input"] == str(good)
    assert str(folder / "files") not in json.dumps(listed)


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({"output_format": "exe"}, "/output_format"),
        ({"max_failed": -1}, "/max_failed"),
        ({"deadline_s": 1e9}, "/deadline_s"),
        ({"max_failed": "many"}, "/max_failed"),
    ],
)
def test_a_wrong_member_is_named(gateway: GatewayClient, asked: dict[str, object], pointer: str) -> None:
    answer = gateway.post("/v1/runs", json={"model": "square", "input": "file-x", **asked})
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]


def test_what_is_not_there_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound):
        client.run("square", "file-01k9xw3c5t8ze2m4v6b7n0q1rs")
    # Regression: the path of a local file, as text, was taken for the id of an uploaded one.
    with pytest.raises(BadRequest, match=r"cannot read the input file nowhere\.jsonl"):
        client.run("square", "nowhere.jsonl")
    with pytest.raises(BadRequest, match="rows of JSON"):
        client.run("square", [Path("a.png")])
    with pytest.raises(NotFound, match="Did you mean square"):
        client.run("squre", [1])
    with pytest.raises(NotFound):
        client.run_handle("01k9xw3c5t8ze2m4v6b7n0q1rs")
    with pytest.raises((InvalidInput, BadRequest)):
        client.run("square", [1], options=RunOptions(metadata={"penstock:x": "y"}))


def test_the_list_turns_its_pages_and_filters(gateway: GatewayClient, client: Client) -> None:
    made = [client.run("square", [number]).id for number in range(3)]
    found: list[str] = []
    after = ""
    while True:
        page = gateway.get("/v1/runs", params={"limit": 2, "status": "queued", "after": after}).json()
        found += [run["id"] for run in page["data"]]
        if not page["has_more"]:
            break
        after = page["data"][-1]["id"]
    assert [id for id in found if id in made] == made[::-1]


def test_the_pages_show_a_run_and_what_is_wrong_with_it(gateway: GatewayClient, client: Client, runner: Runner) -> None:
    run = client.run("square", [1], options=RunOptions(metadata={"<b>": "<script>alert(1)</script>"}))
    runner.tell(run.id, RunChange(state=RunState.RUNNING, counts=RunCounts(total=200, done=50), rows_per_s=15.0))
    listed, shown = (gateway.get(path).text for path in ("/ui/runs", f"/ui/runs/{run.id}"))
    assert '<progress max="100" value="25"' in listed
    assert "50 of 200" in shown
    assert "<script>alert" not in shown
    assert gateway.get(f"/ui/runs/{run.id}/output").status_code == 410
    ours = {"sec-fetch-site": "same-origin"}
    assert gateway.post(f"/ui/runs/{run.id}/cancel", headers=ours).status_code == 303
    assert "cancel requested" in gateway.get(f"/ui/runs/{run.id}").text
    faults = [{"code": "invalid_json_line", "line": 7, "message": "<img src=x>", "param": None}]
    runner.tell(
        run.id,
        RunChange(state=RunState.FAILED, error_code="invalid_batch", error_message="no", details={"errors": faults}),
    )
    page = gateway.get(f"/ui/runs/{run.id}").text
    assert "invalid_json_line" in page
    assert "<img src=x>" not in page


def test_the_files_of_a_run_are_downloaded_from_its_page(gateway: httpx2.Client, client: Client, redis_url: str) -> None:
    run = client.run("square", [2, -1])
    with working(redis_url, run.id):
        run.wait(30.0)
    answer = gateway.get(f"/ui/runs/{run.id}/output")
    assert answer.text == '{"output": 4}\n{"output": null}\n'
    assert answer.headers["content-security-policy"] == "sandbox"
    assert "negative" in gateway.get(f"/ui/runs/{run.id}/errors").text


def test_columns_that_the_input_does_not_have_are_refused_with_those_that_are_there(gateway: GatewayClient) -> None:
    form = {"file": ("rows.csv", b"price,size\n1,2\n")}
    uploaded = gateway.post("/v1/files", files=form, data={"purpose": "user_data"}).json()["id"]
    wrong = gateway.post("/v1/runs", json={"model": "square", "input": uploaded, "columns": {"x": "pirce"}, "carry": ["id"]})
    assert wrong.status_code == 422
    assert [fault["pointer"] for fault in wrong.json()["errors"]] == ["/columns/x", "/carry/0"]
    assert "The columns of the input are 'price', 'size'" in wrong.json()["hint"]
    good = gateway.post("/v1/runs", json={"model": "square", "input": uploaded, "columns": {"x": "price"}, "carry": ["*"]})
    assert good.status_code == 202, good.text


def test_runs_are_found_and_cancelled_by_their_tags(gateway: GatewayClient, client: Client, runner: Runner) -> None:
    options = [RunOptions(tags=tags) for tags in (["nightly", "team:a"], ["nightly"], ["weekly"])]
    waits, under_way, other = (client.run("square", [1], options=each) for each in options)
    assert waits.view.body["tags"] == ["nightly", "team:a"]
    runner.tell(under_way.id, RunChange(state=RunState.RUNNING))
    listed = gateway.get("/v1/runs", params={"tag": "nightly"}).json()["data"]
    assert [run["id"] for run in listed] == [under_way.id, waits.id]
    ended = gateway.post("/v1/runs:cancel", params={"tag": "nightly"})
    assert (ended.status_code, ended.json()) == (202, {"cancelled": 1, "requested": 1, "has_more": False})
    assert (waits.refresh().status, other.refresh().status) == ("cancelled", "queued")
    assert under_way.refresh().body["cancel_requested"]
    assert client.cancel_runs("weekly") == CancelledRuns(cancelled=1, requested=0)
    assert client.cancel_runs("nightly") == CancelledRuns(cancelled=0, requested=1)
    for params in ({"tag": "a b"}, {}, {"tag": "a", "model": "square"}):
        assert gateway.post("/v1/runs:cancel", params=params).status_code == 400
    assert gateway.get("/v1/runs", params={"tag": ","}).status_code == 400
    with pytest.raises(BadRequest, match="a tag has 1 to 64 characters"):
        client.run("square", [1], options=RunOptions(tags=["a b"]))
    with pytest.raises(BadRequest, match="at most 8 tags"):
        client.run("square", [1], options=RunOptions(tags=[f"t{number}" for number in range(9)]))


def test_what_all_rows_are_told_is_stored_if_the_models_settings_name_it(client: Client, runner: Runner) -> None:
    said = RunOptions(headers={"X-Tenant": "blue"}, query={"language": "de"})
    made = runner.runs.read(client.run("told", [1], options=said).id)
    assert made is not None
    assert (made.spec.headers, made.spec.query) == ({"x-tenant": "blue"}, {"language": "de"})
    for wrong in (
        RunOptions(headers={"x-other": "a"}),
        RunOptions(query={"lang": "de"}),
        RunOptions(headers={"x-tenant": "a" * 2_000}),
    ):
        with pytest.raises(InvalidInput, match="the run cannot have these"):
            client.run("told", [1], options=wrong)
    with pytest.raises(InvalidInput, match="The model takes none"):
        client.run("square", [1], options=said)


def test_more_runs_than_one_request_looks_at_are_cancelled_in_several(client: Client, runner: Runner) -> None:
    """An answer said that there is more and not where to go on: a repeat found the same running runs for ever."""
    spec = RunSpec(model="square", input="in.jsonl", output="out.jsonl", tags=("many",))
    made = [runner.runs.create(new_serial(), spec).run.id for _ in range(_MOST_CANCELLED + 3)]
    for run_id in made:
        runner.tell(run_id, RunChange(state=RunState.RUNNING))
    assert client.cancel_runs("many") == CancelledRuns(cancelled=0, requested=len(made))
