from __future__ import annotations

import pytest

from penstock.extensions.openai.gateway.views import batch_view
from penstock.gateway.runs.service import RunOutputFiles
from penstock.gateway.runs.views import run_view
from penstock.run import Run, RunSpec, RunState

FILES = "/srv/penstock/files"
SPEC = RunSpec(
    model="square",
    kind="openai",
    input=f"{FILES}/file-a/content",
    output=f"{FILES}/file-b/content",
    errors=f"{FILES}/file-c/content",
    endpoint="/v1/models/square/jobs",
)


def failed(message: str, spec: RunSpec = SPEC) -> Run:
    return Run(id="r", spec=spec, state=RunState.FAILED, created_at=0.0, error_code="io_error", error_message=message)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (f"[Errno 2] No such file or directory: '{SPEC.input}'", "[Errno 2] No such file or directory: 'file-a'"),
        (f"{SPEC.output}.part cannot be written", "the output.part cannot be written"),
        (f"{FILES}/file-b/journal is torn", "journal is torn"),
    ],
)
def test_an_error_of_a_run_shows_no_path_of_the_server(message: str, shown: str) -> None:
    run = failed(message)
    assert run_view(run, RunOutputFiles(), input_name="file-a", now=0.0)["error"]["message"] == shown
    assert batch_view(run, RunOutputFiles(), input_file="file-a")["errors"]["data"][0]["message"] == shown


def test_a_path_that_the_caller_gave_stays_in_the_error() -> None:
    spec = RunSpec(model="m", input="/data/in.csv", output=f"{FILES}/file-b/content", errors=f"{FILES}/file-c/content")
    message = "/data/in.csv has no column 'c'"
    assert run_view(failed(message, spec), RunOutputFiles(), input_name="/data/in.csv", now=0.0)["error"]["message"] == message
