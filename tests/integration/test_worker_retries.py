"""Which errors are tried again, how often and when, as the settings of the model say. The worker and the store are real."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from penstock.model_spec import Limits
from tests.integration.worker_process import HANDLERS, JobClient, WorkerProcess

SOURCE = str(HANDLERS / "flaky.py")
QUICK = {"retry_delay_s": 0.05}
MODELS = {
    "patient": {"source": SOURCE, "max_batch_size": 1, "warm_up": False, "retry_on": ["ConnectionError", "busy"], **QUICK},
    "plain": {"source": SOURCE, "max_batch_size": 1, "warm_up": False},
}


def item(name: str, raises: int, busy: int) -> dict[str, object]:
    return {"name": name, "raises": raises, "busy": busy}


def test_what_the_settings_name_is_tried_again_and_nothing_else(fresh_redis: str, tmp_path: Path) -> None:
    limits = Limits(max_attempts=4)
    with (
        WorkerProcess(fresh_redis, tmp_path / "w", MODELS, beat_s=0.2),
        closing(JobClient(fresh_redis, "patient", limits=limits)) as patient,
        closing(JobClient(fresh_redis, "plain", limits=limits)) as plain,
    ):
        good, spent = patient.await_final(patient.submit(item("a", 1, 1), item("b", 9, 0)))
        raised, busy = plain.await_final(plain.submit(item("a", 1, 0), item("b", 0, 1)))
        assert (good.state.value, good.attempts, patient.output(good.id)) == ("succeeded", 3, 3)
        assert spent.error is not None
        assert (spent.state.value, spent.attempts, spent.error.code) == ("failed", 4, "handler_error")
        assert spent.error.message == "ConnectionResetError: the service hung up"
        assert [(job.state.value, job.attempts) for job in (raised, busy)] == [("failed", 1), ("failed", 1)]
