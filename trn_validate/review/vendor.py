"""The section of a report that shows the vendor's own run beside the gate."""

from __future__ import annotations

from trn_validate.config import Plan
from trn_validate.vendor_record import VendorRecord

HEADING = "## The vendor's own run"


OUTSIDE = (
    "Outside the gate: the fork's shipped config, unmodified. It opens and closes nothing. "
    "Where it works and a stage does not, look at the plan and at us; where both fail, look at "
    "the stack. Its numbers are read from its log."
)


def vendor_lines(plan: Plan, record: VendorRecord | None) -> list[str]:
    """What it says of the vendor's run; empty where the plan's device could not have had one."""
    if record is None:
        neuron = plan.profile.device == "neuron"
        return [HEADING, "", "Not run yet: make vendor-run"] if neuron else []
    rows = vendor_rows(record)
    # What a log said may hold a bar, which would end a cell.
    cells = (f"| {name} | {' '.join(text.split()).replace('|', '/')} |" for name, text in rows)
    return [HEADING, "", OUTSIDE, "", "| of the run | |", "| --- | --- |", *cells]


def vendor_rows(record: VendorRecord) -> tuple[tuple[str, str], ...]:
    """What there is to say of it, by name."""
    status = "none: ended by a limit" if record.exit_status is None else str(record.exit_status)
    seen = sorted({step.step for step in record.steps})
    losses = ", ".join(f"{step.step}: {step.loss:.5g}" for step in record.steps)
    return (
        ("outcome", str(record.outcome)),
        ("exit status", status),
        ("cause", f"{record.cause} {record.what}".strip()),
        ("steps", f"{len(seen)} of {record.wanted}"),
        ("loss by step", losses or "-"),
        ("not finite", ", ".join(f"step {s.step}" for s in record.not_finite) or "none"),
        ("seconds", f"{record.seconds:.1f}"),
        ("torchtitan-neuron", record.fork),
        ("log", record.log),
    )
