"""One call before all others, so that a wrong address or body is reported at once instead of measured."""

from __future__ import annotations

from penstock.client.problems import GatewayUnreachable, UnexpectedAnswer
from penstock.errors import CallerError, CapacityError, PenstockError
from penstock.loadtest.adapters import ProtocolAdapter
from penstock.loadtest.generator.closed_loop import ClosedLoop
from penstock.loadtest.generator.load_loop import LoadWire, ResponseRecorder
from penstock.loadtest.generator.summary import LOST, is_good

# Some servers load a model at its first call.
_PATIENCE_S = 60.0
_CAPACITY = (429, 503)


async def check_first_call(adapter: ProtocolAdapter, request: bytes) -> None:
    """Raises `GatewayUnreachable`, `CallerError`, `CapacityError` or `UnexpectedAnswer`, by the server's answer."""
    recorder = ResponseRecorder()
    try:
        await ClosedLoop(LoadWire(adapter.target), iter([request]), recorder).run(1, _PATIENCE_S, drain_s=0.0)
    except OSError as fault:
        raise GatewayUnreachable(
            f"{_where(adapter)} cannot be reached: {fault.strerror or fault}", hint=_start_hint(adapter)
        ) from fault
    status = recorder.samples.statuses[0] if recorder.samples.statuses else None
    if status is None or not is_good(status):
        raise _refused(adapter, status, recorder.bodies.get(status or LOST, b"").decode("utf-8", "replace"))


def _refused(adapter: ProtocolAdapter, status: int | None, body: str) -> PenstockError:
    if status is None:
        return UnexpectedAnswer(f"{_where(adapter)} did not answer the first call within {_PATIENCE_S:.0f} s")
    if status == LOST:
        return UnexpectedAnswer(f"{_where(adapter)} closed the connection on the first call", hint="is it an HTTP/1.1 server?")
    text = f"{_where(adapter)} answered the first call with {status}: {body[:300]}"
    if status in _CAPACITY:
        return CapacityError(text, hint="wait until it is ready (penstock models), then measure")
    if 400 <= status < 500:
        return CallerError(text, hint="check the model's name, --version, --body and --api-key")
    return UnexpectedAnswer(text, hint="try one call by hand with curl or `penstock call`")


def _where(adapter: ProtocolAdapter) -> str:
    return f"{adapter.method} http://{adapter.target.host}:{adapter.target.port}{adapter.target.path}"


def _start_hint(adapter: ProtocolAdapter) -> str:
    return "start it with `penstock up`, or name its address with --url" if adapter.kind == "penstock" else "check the address"
