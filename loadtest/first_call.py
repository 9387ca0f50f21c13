"""One call before all others, so that a wrong address or body is told at once and not measured."""

from __future__ import annotations

from penstock.client.problems import GatewayUnreachable, UnexpectedAnswer
from penstock.errors import CallerError, CapacityError, PenstockError
from penstock.loadtest.adapters import ProtocolAdapter
from penstock.loadtest.generator.closed_loop import ClosedLoop
from penstock.loadtest.generator.driver import LoadWire, ResponseRecorder
from penstock.loadtest.generator.summary import LOST, is_good

# A model may load at its first call.
_PATIENCE_S = 60.0
_CAPACITY = (429, 503)


async def check_first_call(door: ProtocolAdapter, request: bytes) -> None:
    """Raises what the server's answer amounts to: `GatewayUnreachable`, `CallerError`, `CapacityError`, `UnexpectedAnswer`."""
    recorder = ResponseRecorder()
    try:
        await ClosedLoop(LoadWire(door.target), iter([request]), recorder).run(1, _PATIENCE_S, drain_s=0.0)
    except OSError as fault:
        raise GatewayUnreachable(
            f"{_where(door)} cannot be reached: {fault.strerror or fault}", hint=_start_hint(door)
        ) from fault
    status = recorder.samples.statuses[0] if recorder.samples.statuses else None
    if status is None or not is_good(status):
        raise _refused(door, status, recorder.bodies.get(status or LOST, b"").decode("utf-8", "replace"))


def _refused(door: ProtocolAdapter, status: int | None, said: str) -> PenstockError:
    if status is None:
        return UnexpectedAnswer(f"{_where(door)} did not answer the first call within {_PATIENCE_S:.0f} s")
    if status == LOST:
        return UnexpectedAnswer(f"{_where(door)} closed the connection on the first call", hint="does it speak HTTP/1.1 there?")
    text = f"{_where(door)} answered the first call with {status}: {said[:300]}"
    if status in _CAPACITY:
        return CapacityError(text, hint="wait until it is ready (penstock models), then measure")
    if 400 <= status < 500:
        return CallerError(text, hint="check the model's name, --version, --body and --api-key")
    return UnexpectedAnswer(text, hint="try one call by hand: curl, or penstock call")


def _where(door: ProtocolAdapter) -> str:
    return f"{door.method} http://{door.target.host}:{door.target.port}{door.target.path}"


def _start_hint(door: ProtocolAdapter) -> str:
    return "start it with `penstock up`, or name its address with --url" if door.kind == "penstock" else "check the address"
