"""What a run proves and what it does not, each sentence drawn from its verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trn_validate.check import Check
from trn_validate.evidence import evidence
from trn_validate.gate import first_closed
from trn_validate.review.cells import GRADIENT, LOSS
from trn_validate.review.margins import used
from trn_validate.review.material import Material
from trn_validate.verdict import Outcome, Verdict

_RUNGS = "parallelism."
_BOUNDS = (
    "A few steps are not convergence: they show that two runs compute the same thing.",
    "Gradients are compared at step 1 alone; later steps by loss, gradient norm and the "
    "parameters after the last one.",
    "Speed and memory are recorded and judged by nothing.",
)
_ALONE = "One node. Nothing was asked between machines."
_AUTHORSHIP = (
    "Who made this: hashes show that the files fit each other, not whose they are. That needs a "
    "signature."
)
_PRESENT = (
    "That it still holds: whether sources, plan or machine have changed since, this folder "
    "cannot tell. On the machine, pipeline.py status can."
)


def proven(material: Material) -> tuple[str, ...]:
    """What the stages say that are fresh, passed, and stand behind an open gate."""
    return tuple(_proven(material))


def _proven(material: Material) -> Iterator[str]:
    passed = {v.stage: v for v in _standing_passed(material)}
    if "environment.device" in passed:
        neuron = material.plan.profile.device == "neuron"
        how = "with its accelerator" if neuron else "which is no accelerator"
        yield f"The machine has what the plan {material.plan.target} asks for, {how}."
    if "environment.nodes" in passed:
        nodes = material.plan.nodes
        yield f"{nodes} nodes are alike, see one folder, and reach each other."
    if (collectives := passed.get("environment.collectives")) is not None:
        worlds = sorted({str(c.processes) for c in collectives.capabilities}, key=int)
        yield f"The collectives that the layouts need were exact on {_joined(worlds)} ranks."
    if "environment.ops" in passed:
        yield "Single operations and their gradients on the device agree with the CPU."
    if (eager := passed.get("baseline.eager")) is not None:
        yield from _eager(eager)
    if "baseline.checkpoint" in passed:
        yield (
            "A checkpoint was saved, resumed with the same state and losses, and exported; a "
            "damaged one was noticed."
        )
    yield from _layouts([v for stage, v in passed.items() if stage.startswith(_RUNGS)])
    if (compiled := passed.get("kernels.compile")) is not None:
        names = [c.candidate.name for c in compiled.compared]
        yield f"Compiled without breaks or recompiles, {_joined(names)} gave the same numbers."
    if (kernels := passed.get("kernels.nki")) is not None:
        names = [kernel.name for kernel in material.plan.kernels]
        yield (
            f"The kernels {_joined(names)} agree with their references, outputs and gradients, "
            f"executed by {_joined(_providers(kernels))}."
        )


def _standing_passed(material: Material) -> Iterator[Verdict]:
    for standing in material.standings:
        verdict = standing.verdict
        if not standing.opens:
            return
        if verdict is not None and verdict.outcome is Outcome.PASSED:
            yield verdict


def _eager(verdict: Verdict) -> Iterator[str]:
    losses = verdict.series.get("loss", ())
    if not losses:
        return
    rerun = _measured(verdict, f"rerun: {LOSS}")
    again = "to the bit" if rerun == 0 else f"within {rerun:.3g} nats" if rerun else "as required"
    yield (
        f"One process trained {len(losses)} steps: finite, from a loss of {losses[0]:.4f} to "
        f"{losses[-1]:.4f}, and again {again} when it was rerun."
    )


def _layouts(verdicts: Iterable[Verdict]) -> Iterator[str]:
    found = [(v, c, part) for v in verdicts for c, part in _gradients(v)]
    if not found:
        return
    names = [v.stage.removeprefix(_RUNGS) for v, _, _ in found]
    verdict, check, part = max(found, key=lambda entry: entry[2])
    yield (
        f"{_count(len(names), 'layout')} ({_joined(names)}) against the ladder's reference: "
        f"the same rows, losses, gradients and parameters. Furthest off is the gradient of "
        f"{verdict.stage.removeprefix(_RUNGS)}, {check.measured:.2g} with {check.limit:.2g} "
        f"allowed ({100 * part:.0f} %)."
    )


def _gradients(verdict: Verdict) -> Iterator[tuple[Check, float]]:
    name = f"{verdict.stage.removeprefix(_RUNGS)}: {GRADIENT}"
    for check in verdict.checks:
        part = used(check)
        if check.name == name and part is not None:
            yield check, part


def _providers(verdict: Verdict) -> list[str]:
    told = {str(c.measured) for c in verdict.checks if c.name.endswith(": provider")}
    return [f"the {name}" for name in sorted(told)]


def _measured(verdict: Verdict, name: str) -> float | None:
    found = next((c.measured for c in verdict.checks if c.name == name), None)
    return None if found is None or isinstance(found, str) else float(found)


def unproven(material: Material) -> tuple[str, ...]:
    """What a reader must not take from it."""
    return tuple(_unproven(material))


def _unproven(material: Material) -> Iterator[str]:
    real, why = evidence({v.stage: v for v in material.verdicts})
    if not real:
        yield f"Anything about a Trainium. This is a rehearsal: {why}."
    closed = first_closed(material.standings)
    if closed is not None:
        ids = [s.stage.id for s in material.standings]
        after = len(ids) - ids.index(closed.stage.id) - 1
        more = f", nor what the {after} after it ask" if after else ""
        yield f"What {closed.stage.id} asks{more}: the gate is closed there."
    for standing in material.standings:
        if standing.verdict is not None and standing.verdict.unsupported:
            yield f"What {standing.stage.id} asks: unsupported, {standing.verdict.unsupported}."
    kernels = material.verdict("kernels.nki")
    if kernels is not None and (others := set(_providers(kernels)) - {"the device"}):
        yield f"How a kernel does on a device: {_joined(sorted(others))} executed them."
    yield from _BOUNDS
    nodes = material.plan.nodes
    yield _ALONE if nodes == 1 else f"More than {nodes} nodes, or others: these alone were asked."
    yield _AUTHORSHIP
    yield _PRESENT


def _joined(names: Iterable[str]) -> str:
    *rest, last = [*names] or ["none"]
    return f"{', '.join(rest)} and {last}" if rest else last


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
