"""Measures the time of batches, the memory of a child, and its answers, on real children without a queue."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from penstock.errors import BadRequest, ConfigError, PenstockError
from penstock.loadtest.bodies import from_schema
from penstock.loadtest.generator.connection import RequestBody
from penstock.model_spec import ModelSpec, fitted_buckets
from penstock.tune.measuring.children import Children, MeasuredChild, started
from penstock.tune.measuring.drift import ModelOutput, drift
from penstock.tune.prune import drift_in_words
from penstock.tune.result import BatchTime, Drift, EngineSettings, Measured
from penstock.workers.devices.gpus import PyNvml
from penstock.workers.devices.machine import Machine
from penstock.workers.devices.pins import Pin
from penstock.workers.devices.plan import plan, unpinned
from penstock.workers.ipc.frames import BatchDone, Failed, Item, Ready
from penstock.workers.telemetry.gpu_meter import GpuMeter

# Like a worker, which gives its child one batch to run and one to prepare.
_AHEAD = 2
_LEAST_RUNS = 5
_FIRST_RUNS = 2
_QUANTILES = 21
_REFERENCE_INPUTS = 16
_RAW = RequestBody(b"penstock tune", "application/octet-stream")
_INPUT_HINT = "give real inputs: --input cat.jpg, a folder, a .jsonl file or JSON"


@dataclass(frozen=True, slots=True)
class EngineMeasurement:
    """A measurement's figures, the answers to the first inputs, and the largest batch that the handler takes."""

    measured: Measured
    answers: tuple[ModelOutput, ...] = ()
    largest: int | None = None
    inputs: tuple[RequestBody, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchTimer:
    """`inputs` empty: one input is made from the model's schema. `slice_s`: the time for each batch size."""

    spec: ModelSpec
    machine: Machine
    inputs: tuple[RequestBody, ...]
    slice_s: float = 0.5

    def measure(self, engine: EngineSettings, slots: int, sizes: Sequence[int]) -> EngineMeasurement:
        """Runs batches back to back in `slots` children side by side. If the engine cannot run, the result has an `error`."""
        began = time.monotonic()
        try:
            measurement = self._run(engine, slots, sorted(sizes))
        except BadRequest:
            raise
        except (PenstockError, OSError) as fault:
            message = fault.message if isinstance(fault, PenstockError) else str(fault)
            measurement = EngineMeasurement(Measured(engine, slots, error=message[:300]))
        return replace(measurement, measured=replace(measurement.measured, took_s=time.monotonic() - began))

    def _run(self, engine: EngineSettings, slots: int, sizes: Sequence[int]) -> EngineMeasurement:
        spec = spec_for(self.spec, engine, slots, batch_size=max(sizes))
        pins = pins_for(spec, self.machine, pinning=engine.pinning)[:slots]
        meter, before = GpuMeter(PyNvml()), 0
        if pins[0].uuid:
            before = _used(meter, pins[0])
        with started(spec, pins, within_s=spec.limits.load_timeout_s) as children:
            ready = children.members[0].ready
            assert ready is not None
            inputs = self.inputs or (_made_input(ready, spec.name),)
            answers = _answers(children, inputs)
            taken = [size for size in sizes if size <= (ready.max_batch_size or size)]
            times = tuple(time for size in taken if (time := self._times(children, size, inputs)))
            measured = Measured(
                engine,
                slots,
                times,
                memory_bytes=max(child.process.resident_bytes() for child in children.members),
                device_memory_bytes=(_used(meter, pins[0]) - before) // slots if pins[0].uuid else 0,
                load_s=ready.load_s,
                calls=children.members[0].learned,
            )
        return EngineMeasurement(measured, tuple(answers), ready.max_batch_size, inputs)

    def answer_again(self, engine: EngineSettings, inputs: Sequence[RequestBody]) -> list[ModelOutput]:
        """The answers of a new child of the engine to the first inputs, each sent twice."""
        spec = spec_for(self.spec, engine, 1, batch_size=1)
        pins = pins_for(spec, self.machine, pinning=engine.pinning)[:1]
        with started(spec, pins, within_s=spec.limits.load_timeout_s) as children:
            return [*_answers(children, inputs), *_answers(children, inputs)]

    def _times(self, children: Children, size: int, inputs: Sequence[RequestBody]) -> BatchTime | None:
        """None if a batch of this size does not fit into memory."""
        runs = _BatchRuns(children, size, inputs)
        done = runs.until(time.monotonic() + self.slice_s, at_least=_LEAST_RUNS * len(children.members))
        if any(one.cap is not None for one in done):
            return None
        kept = done[min(_FIRST_RUNS * len(children.members), len(done) // 2) :]
        return BatchTime(
            size,
            inference_s=median(one.inference_s for one in kept),
            preprocess_s=median(one.preprocess_s + one.decode_s for one in kept),
            postprocess_s=median(one.postprocess_s for one in kept),
            quantiles_s=_quantiles([one.inference_s for one in kept]),
        )


class _BatchRuns:
    """Runs batches of one size, two under way per child, until the time is over and each child has run a few."""

    def __init__(self, children: Children, size: int, inputs: Sequence[RequestBody]) -> None:
        self._children = children
        self._size = size
        self._inputs = itertools.cycle(_items(inputs))
        self._done: list[BatchDone] = []
        self._until = 0.0
        self._at_least = 0

    def until(self, moment: float, *, at_least: int) -> list[BatchDone]:
        self._until, self._at_least = moment, at_least
        for child in self._children.members:
            for _ in range(_AHEAD):
                child.give(self._batch())
        while any(child.under_way for child in self._children.members):
            self._children.turn(self._on_done)
        return self._done

    def _on_done(self, child: MeasuredChild, done: BatchDone) -> None:
        self._done.append(done)
        refused = next((outcome for outcome in done.outcomes if isinstance(outcome, Failed)), None)
        if refused is not None and done.cap is None:
            raise BadRequest(f"the model refused the input: {refused.code}: {refused.message}", hint=_INPUT_HINT)
        if time.monotonic() < self._until or len(self._done) < self._at_least:
            child.give(self._batch())

    def _batch(self) -> list[Item]:
        return list(itertools.islice(self._inputs, self._size))


def _answers(children: Children, inputs: Sequence[RequestBody]) -> list[ModelOutput]:
    """The answers to the first inputs, one input per batch. Raises `BadRequest` if the model refuses one."""
    answers: list[ModelOutput] = []

    def keep(child: MeasuredChild, done: BatchDone) -> None:
        for outcome in done.outcomes:
            if isinstance(outcome, Failed):
                raise BadRequest(f"the model refused the input: {outcome.code}: {outcome.message}", hint=_INPUT_HINT)
            answers.append(ModelOutput(outcome.content_type, bytes(outcome.data)))

    child = children.members[0]
    for item in _items(inputs[:_REFERENCE_INPUTS]):
        child.give([item])
        while child.under_way:
            children.turn(keep)
    return answers


def differs_from_itself(measurement: EngineMeasurement, again: Sequence[ModelOutput], *, tolerance: float) -> str:
    """How the answers of one engine to the same inputs differ when they come `again`, twice; empty: they do not."""
    twice = [*measurement.answers, *measurement.answers]
    if len(again) != len(twice):
        return ""
    return drift_in_words(drift(again, twice, reference="itself"), tolerance)


def with_drift(measurement: EngineMeasurement, reference: EngineMeasurement) -> Measured:
    """The measurement with the drift of its answers from the reference's."""
    if measurement.measured.error or len(measurement.answers) != len(reference.answers):
        return measurement.measured
    drifted: Drift = drift(measurement.answers, reference.answers, reference=reference.measured.engine.label)
    return replace(measurement.measured, drift=drifted)


def _items(bodies: Sequence[RequestBody]) -> Iterator[Item]:
    return (Item(body.content_type, body.data) for body in bodies)


def _made_input(ready: Ready, model: str) -> RequestBody:
    """The smallest input that the model's schema admits; a few bytes if the model declares no schema."""
    if ready.schemas[0] is not None:
        return from_schema(ready.schemas[0], model)
    return _RAW


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    positions = [number / (_QUANTILES - 1) * (len(ordered) - 1) for number in range(_QUANTILES)]
    return tuple(
        ordered[int(position)]
        + (position - int(position)) * (ordered[min(int(position) + 1, len(ordered) - 1)] - ordered[int(position)])
        for position in positions
    )


def spec_for(spec: ModelSpec, engine: EngineSettings, slots: int, *, batch_size: int, placement: str = "") -> ModelSpec:
    """The model's spec for this configuration. On GPUs, `slots` are the children per device."""
    on_cpu = engine.device == "cpu"
    buckets = fitted_buckets(spec.runtime.batch_buckets, batch_size)
    engine_runtime = replace(spec.runtime, runtime=engine.runtime, precision=engine.precision, compile=engine.compile)
    return replace(
        spec,
        policy=replace(spec.policy, max_batch_size=batch_size),
        runtime=replace(engine_runtime, batch_buckets=buckets),
        device=engine.device,
        threads=engine.threads,
        placement=placement or spec.placement,
        slots=slots if on_cpu else spec.slots,
        slots_per_device=1 if on_cpu else slots,
    )


def pins_for(spec: ModelSpec, machine: Machine, *, pinning: str) -> list[Pin]:
    """The pins that a worker would give its children. Raises `ConfigError` for a device that this machine lacks."""
    layout = plan([spec], machine)
    if pinning == "none":
        layout = unpinned(layout)
    pins = [pin for _, pin in layout.pins()]
    if not pins:
        raise ConfigError(f"this machine has no place for {spec.name} on {spec.device}")
    return pins


def _used(meter: GpuMeter, pin: Pin) -> int:
    reading = meter.read(pin.uuid)
    return reading.used_bytes if reading else 0
