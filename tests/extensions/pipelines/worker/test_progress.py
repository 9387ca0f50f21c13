"""How far a job of a pipeline is, over random graphs whose stages end in any order, fail, and are given up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.extensions.pipelines.spec import PipelineSpec, PipelineStage
from penstock.extensions.pipelines.worker.progress import PipelineProgress, StageEnd, needless_blobs
from penstock.job import JobState, Payload

BAD = (JobState.FAILED, JobState.DEAD, JobState.EXPIRED, JobState.CANCELLED)


@st.composite
def specs(draw: st.DrawFn) -> PipelineSpec:
    """Up to eight stages, each after any of those before it."""
    names = [f"s{number}" for number in range(draw(st.integers(1, 8)))]
    stages = [
        PipelineStage(name, "m", after=tuple(draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else ()))
        for place, name in enumerate(names)
    ]
    return PipelineSpec(tuple(draw(st.permutations(stages))))


def good(name: str) -> StageEnd:
    return StageEnd(JobState.SUCCEEDED, Payload("application/json", name.encode()))


@given(spec=specs(), data=st.data())
def test_every_stage_begins_once_and_only_after_those_before_it(spec: PipelineSpec, data: st.DataObject) -> None:
    progress, begun = PipelineProgress(spec), list[str]()
    while not progress.is_over:
        for stage in progress.due():
            assert set(spec.parents(stage)) <= progress.outputs.keys()
            begun.append(stage.name)
        ended = data.draw(st.sampled_from(progress.under_way))
        progress.end(ended, good(ended.name))
        progress.end(ended, StageEnd(JobState.FAILED, code="late"))  # what is said again changes nothing
    assert sorted(begun) == sorted(stage.name for stage in spec.stages)
    assert progress.is_complete
    assert progress.failed is None
    assert progress.under_way == []
    assert progress.fraction == 1.0


@given(spec=specs(), data=st.data())
def test_the_first_failure_is_the_end_and_nothing_begins_after_it(spec: PipelineSpec, data: st.DataObject) -> None:
    progress, bad = PipelineProgress(spec), set[str]()
    while not progress.is_over:
        progress.due()
        ended = data.draw(st.sampled_from(progress.under_way))
        if data.draw(st.booleans()):
            progress.end(ended, good(ended.name))
        else:
            bad.add(ended.name)
            progress.end(ended, StageEnd(data.draw(st.sampled_from(BAD)), code="c", message="m"))
    assert progress.due() == []
    assert (progress.failed is None) == (not bad)
    if progress.failed is not None:
        assert {progress.failed.stage.name} == bad
        left = progress.under_way
        for stage in left:
            progress.end(stage, StageEnd(JobState.CANCELLED))
        assert {progress.failed.stage.name} == bad
        assert progress.under_way == []


@given(spec=specs(), data=st.data())
def test_once_given_up_nothing_begins_and_what_ends_is_no_failure(spec: PipelineSpec, data: st.DataObject) -> None:
    progress = PipelineProgress(spec)
    for _ in range(data.draw(st.integers(0, len(spec.stages) - 1))):
        progress.due()
        ended = data.draw(st.sampled_from(progress.under_way))
        progress.end(ended, good(ended.name))
    progress.due()
    progress.give_up()
    left = progress.under_way
    assert progress.is_over
    for stage in left:
        progress.end(stage, StageEnd(JobState.CANCELLED))
    assert (progress.due(), progress.failed, progress.is_complete) == ([], None, False)


def test_blobs_that_the_result_does_not_refer_to_are_needless() -> None:
    big, bigger = Payload("image/png", blob="a.out"), Payload("image/png", blob="b.out")
    outputs = {"a": big, "b": bigger, "c": Payload("application/json", b"1"), "d": big}
    given, small = Payload("image/png", blob="own.in"), Payload("application/json", b"{}")
    assert needless_blobs(outputs, bigger, given) == ("a.out",)
    assert needless_blobs(outputs, small, given) == ("a.out", "b.out")
    # Regression: a stage that was a pipeline handed back its input, and the blob that a replay needs was deleted.
    assert needless_blobs({"inner": given, **outputs}, small, given) == ("a.out", "b.out")
