"""What a pipeline is: what each stage waits for and gets, the ids of its jobs, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from penstock.errors import ConfigError
from penstock.extensions.pipelines.spec import (
    MOST_STAGES,
    PipelineSpec,
    PipelineStage,
    announced,
    announced_stages,
    checked,
    circle_of,
    stage_job,
)
from penstock.job import new_job_id, parse_job_id
from penstock.model_spec import VersionInfo


def stage(name: str, *after: str, input: str | dict[str, str] = "") -> PipelineStage:
    return PipelineStage(name, "m", after=after, input=input)


def test_a_stage_follows_those_in_after_and_those_that_its_input_names() -> None:
    spec = PipelineSpec((stage("a"), stage("b"), stage("c", "b", input={"x": "a.boxes", "y": "input.id", "z": "b"})))
    assert spec.parents(spec.stage("c")) == ("b", "a")
    assert spec.leaves() == ("c",)
    assert [one.name for one in spec.roots()] == ["a", "b"]


def test_without_words_a_stage_gets_the_input_or_the_one_before_or_an_object_of_those_before() -> None:
    spec = PipelineSpec((stage("a"), stage("b", "a"), stage("c", "b", "a"), stage("d", "a")))
    assert [spec.wanted(one) for one in spec.stages] == ["input", "a", {"b": "b", "a": "a"}, "a"]
    assert spec.result() == {"c": "c", "d": "d"}
    assert PipelineSpec((stage("a"),)).result() == "a"
    assert PipelineSpec((stage("a"),), "input.x").result() == "input.x"


def test_the_job_of_a_stage_follows_from_that_of_the_pipeline_and_from_nothing_else() -> None:
    job, other = new_job_id("whole"), new_job_id("whole")
    made = stage_job(job, stage("a"))
    assert made == stage_job(job, PipelineStage("a", "m", version="7", after=("b",)))
    assert parse_job_id(str(made)) == made
    assert made.serial[:10] == job.serial[:10]
    assert stage_job(job._replace(partition=2), stage("a")).partition == 0, "whatever the number of the stage's partitions is"
    ids = [stage_job(one, stage(name)) for one in (job, other) for name in ("a", "b")]
    assert len({*ids, job, other}) == 6


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ((), "has 1 to 64 stages, and this one has 0"),
        (tuple(stage(f"s{n}") for n in range(MOST_STAGES + 1)), "this one has 65"),
        ((stage("a"), stage("a")), "this name stands 2 times"),
        ((stage("input"),), "is not 'input'"),
        ((stage("a.b"),), "a name has letters"),
        ((stage("a", "b"),), "after names 'b', and the stages are a"),
        ((stage("a", input={"x": "nobody.y"}),), "input names 'nobody', which is neither 'input' nor one of the stages a"),
        ((stage("a", input="input..x"),), "has an empty part"),
        ((stage("a", "b"), stage("b", input="a"), stage("c")), "stages a, b wait for each other"),
        ((stage("a", "a"),), "stages a wait for each other"),
    ],
)
def test_what_cannot_run_is_refused_in_words(stages: tuple[PipelineStage, ...], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked("p", PipelineSpec(stages))
    assert any(said in fault for fault in refused.value.faults)


def test_pipelines_that_are_stages_of_each_other_are_found() -> None:
    assert circle_of({"a": ["b", "m"], "b": ["c"], "c": ["m"]}) == []
    assert circle_of({"a": ["b"], "b": ["c"], "c": ["b"], "d": ["m"]}) == ["a", "b", "c"]


def test_stages_are_announced_in_the_words_of_the_version_before() -> None:
    # Written by a worker whose records held the type of a stage itself.
    kept = (
        b'[{"name":"a","model":"m","version":"","after":[],"input":"","form":false,"as_bytes":false},'
        b'{"name":"b","model":"m","version":"","after":["a"],"input":{"x":"a.y"},"form":false,"as_bytes":false}]'
    )
    stages = (stage("a"), stage("b", "a", input={"x": "a.y"}))
    assert msgspec.json.encode(VersionInfo(stages=announced(stages)).stages) == kept
    read = msgspec.json.decode(b'{"stages":' + kept + b"}", type=VersionInfo)
    assert announced_stages(read) == stages
    assert read.stages == announced(stages)
