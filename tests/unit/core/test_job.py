"""Ids of jobs and names of queues: what callers see, what the store's keys are named after, and back."""

from __future__ import annotations

import pytest

from penstock.broker.store.ops import prefix, queue_name
from penstock.errors import MalformedId
from penstock.job import (
    MOST_PARTITIONS,
    JobId,
    job_in,
    model_of,
    new_job_id,
    parse_job_id,
    queue_of,
    queues_of,
)
from penstock.model_spec import name_fault

SERIAL = "01k9xw3c5t8ze2m4v6b7n0q1rs"


def test_an_id_of_the_first_partition_is_as_it_was_before_there_were_partitions() -> None:
    assert str(JobId(SERIAL, "square")) == f"{SERIAL}-square"
    assert parse_job_id(f"{SERIAL}-square") == (SERIAL, "square", 0)
    assert JobId(SERIAL, "square").queue == "square"


@pytest.mark.parametrize("partition", [1, 9, 10, MOST_PARTITIONS - 1])
@pytest.mark.parametrize("model", ["square", "a.b-c_2", "0-1.2"])
def test_an_id_and_the_name_of_its_queue_say_the_partition(model: str, partition: int) -> None:
    job = JobId(SERIAL, model, partition)
    assert str(job) == f"{SERIAL}.{partition}-{model}"
    assert parse_job_id(str(job)) == job == job_in(SERIAL, job.queue)
    assert model_of(job.queue) == model


@pytest.mark.parametrize("place", [".0", ".01", ".", ".-1", ".x", ".100", ".1.2", ".²", " .1"])
def test_a_partition_is_written_in_one_way_only(place: str) -> None:
    with pytest.raises(MalformedId):
        parse_job_id(f"{SERIAL}{place}-square")


def test_the_queues_of_a_model_are_named_in_order_and_their_keys_share_no_slot() -> None:
    assert queues_of("m", 3) == ["m", "m:1", "m:2"] == [queue_of("m", p) for p in range(3)]
    assert [prefix(queue) for queue in queues_of("m", 2)] == ["ps:{m}:", "ps:{m:1}:"]
    assert [queue_name(queue) for queue in queues_of("m", 2)] == ["penstock.{m}", "penstock.{m:1}"]


def test_ids_of_one_process_ascend_over_partitions() -> None:
    made = [new_job_id("m", partition) for partition in (0, 1, 0, 2, 1)]
    assert [job.serial for job in made] == sorted(job.serial for job in made)
    assert [job.partition for job in made] == [0, 1, 0, 2, 1]


def test_no_model_has_the_name_of_the_stores_own_records() -> None:
    assert name_fault("registry") == "'registry' is the name of the store's own records; choose another"
    assert [name_fault(name) for name in ("registry2", "my-registry", "Registry", "runs", "store")] == [""] * 5
    with pytest.raises(MalformedId):
        parse_job_id(f"{SERIAL}-registry")
