from __future__ import annotations

from penstock.workers.child.output_sizes import bounded, unsent
from penstock.workers.ipc.frames import BatchDone, Failed, Outcome, Output, Ready, ShardDone

BAD = Failed("bad", "the handler's own")


def out(size: int) -> Output:
    return Output("application/octet-stream", b"x" * size)


def done(*outcomes: Outcome) -> BatchDone:
    return BatchDone(7, list(outcomes), 0.0, 1.0, 0.1, 0.2, 0.3)


def test_a_batch_whose_outputs_fit_stays_as_it_is() -> None:
    outcomes: list[Outcome] = [out(40), BAD, out(60)]
    assert bounded(outcomes, most=100) == outcomes


def test_of_a_batch_that_is_too_large_together_the_largest_fail_and_the_others_do_not() -> None:
    kept = bounded([out(10), out(90), BAD, out(30), out(40)], most=80)
    assert kept[0] == out(10)
    assert kept[3:] == [out(30), out(40)]
    assert kept[2] is BAD
    assert kept[1] == Failed("handler_contract", "output too large: 90 bytes, limit 80 for the 5 outputs of a batch together")


def test_a_frame_that_there_is_no_memory_to_write_is_sent_without_its_outputs() -> None:
    sent = unsent(done(out(10), BAD, out(20)))
    assert isinstance(sent, BatchDone)
    assert (sent.batch, sent.inference_s, sent.outcomes[1]) == (7, 0.2, BAD)
    assert "output too large: 10 bytes, in a batch of 30" in str(sent.outcomes[0])
    shard = unsent(ShardDone(3, done(out(10)), calls=4))
    assert isinstance(shard, ShardDone)
    assert (shard.shard, shard.calls, type(shard.done.outcomes[0])) == (3, 4, Failed)
    ready = Ready(1.0)
    assert unsent(ready) is ready
