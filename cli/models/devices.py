"""`penstock doctor --devices`: the cores and GPUs of this machine, and the slots that would get them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import typer

from penstock.cli.display import print_faint, print_json, print_table
from penstock.model_spec import ModelSpec
from penstock.workers.devices.machine import Machine, discover
from penstock.workers.devices.plan import COLUMNS, PinningPlan, table
from penstock.workers.devices.plan import plan as pinned
from penstock.workers.devices.topology import Topology, ranges

_GIB = 1 << 30


def show_devices(specs: Sequence[ModelSpec], *, as_json: bool) -> None:
    """Print the cores and GPUs of this machine, and which slot of a worker here would get which."""
    machine = discover()
    plan = pinned(specs, machine)
    if as_json:
        return print_json({"machine": _machine_view(machine), **_plan_view(plan)})
    for line in lines_of(machine):
        typer.echo(line)
    return _print_plan(plan)


def lines_of(machine: Machine) -> list[str]:
    """The machine in words: cores first, then a line per GPU and slice, or why there is no GPU."""
    lines = [f"cores  {cores_line(machine.topology)}"]
    for gpu in machine.gpus.found:
        for unit in (gpu.whole, *gpu.slices):
            kind = "slice" if unit.slice else "gpu  "
            free, total = (size / _GIB for size in (unit.free_bytes, unit.memory_bytes))
            node = "" if unit.node is None else f", node {unit.node}"
            mig = ", MIG on: only its slices are usable" if gpu.mig and not unit.slice else ""
            lines.append(f"{kind}  {unit.name}, {unit.uuid}, {free:.1f} of {total:.1f} GiB free{node}{mig}")
    if machine.gpus.absent:
        lines.append(f"gpu    none: {machine.gpus.absent}")
    if machine.mps:
        lines.append("mps    its daemon runs: slots on one GPU compute at the same time")
    return lines


def cores_line(topology: Topology) -> str:
    nodes = ", ".join(f"node {node}: {ranges(cores)}" for node, cores in topology.nodes.items())
    quota = "" if topology.quota is None else f"; quota {topology.quota:g}: {topology.budget} used"
    limit = topology.memory_limit_bytes
    memory = "" if limit is None else f"; {limit / _GIB:.1f} GiB of memory"
    return f"{len(topology.cores)} physical ({nodes}){quota}{memory}"


def _print_plan(plan: PinningPlan) -> None:
    if not plan.specs:
        print_faint("no model is declared here; name one to see the plan for its slots: penstock doctor --devices model.py")
        return
    typer.echo("")
    print_table(COLUMNS, table(plan))
    for sentence in plan.advice:
        print_faint(sentence)


def _machine_view(machine: Machine) -> dict[str, Any]:
    topology = machine.topology
    return {
        "nodes": {str(node): list(cores) for node, cores in topology.nodes.items()},
        "quota": topology.quota,
        "budget": topology.budget,
        "memory_limit_bytes": topology.memory_limit_bytes,
        "gpus": [asdict(gpu) for gpu in machine.gpus.found],
        "driver": machine.gpus.driver,
        "no_gpu": machine.gpus.absent,
        "mps": machine.mps,
    }


def _plan_view(plan: PinningPlan) -> dict[str, Any]:
    slots = [{"model": spec.name, "version": spec.version, **asdict(pin)} for spec, pin in plan.pins()]
    return {"slots": slots, "advice": list(plan.advice)}
