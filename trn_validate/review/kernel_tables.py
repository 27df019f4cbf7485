"""The kernel matrix and the table of compilations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trn_validate.check import Check
from trn_validate.review.cells import GRADIENT, Table
from trn_validate.review.figures import LaunchFigures
from trn_validate.review.material import Material
from trn_validate.verdict import Verdict

NKI, COMPILE = "kernels.nki", "kernels.compile"
_DTYPES = ("float32", "bfloat16")


def matrix(material: Material) -> Table | None:
    """Each kernel in each dtype: what executed it, and its worst errors."""
    verdict = material.verdict(NKI)
    names = [kernel.name for kernel in material.plan.kernels]
    if verdict is None or not verdict.checks:
        return None
    rows = tuple(row for name in names for row in _rows(verdict, name))
    bad = frozenset(n for n, row in enumerate(rows) if row[3].split("/")[0] != row[3].split("/")[1])
    header = (
        *("kernel", "dtype", "executed by", "checks that hold"),
        *("largest error (limit)", "Frobenius error (limit)", "first that says no"),
    )
    return Table(header, rows, "Each kernel's operator against its reference", bad)


def _rows(verdict: Verdict, kernel: str) -> Iterator[tuple[str, ...]]:
    provider = next((c for c in verdict.checks if c.name == f"{kernel}: provider"), None)
    for dtype in _DTYPES:
        own = [c for c in verdict.checks if _is_of(c, f"{kernel} {dtype}")]
        if not own:
            continue
        no = next((c.name for c in own if not c.passed), "-")
        yield (
            kernel,
            dtype,
            str(provider.measured) if provider else "-",
            f"{sum(c.passed for c in own)}/{len(own)}",
            _worst(own, "largest error"),
            _worst(own, "frobenius error"),
            no,
        )


def _is_of(check: Check, where: str) -> bool:
    return check.name.startswith((f"{where}:", f"{where},"))


def _worst(checks: Sequence[Check], kind: str) -> str:
    of_kind = (c for c in checks if c.name.endswith(f": {kind}"))
    found = [c for c in of_kind if not isinstance(c.measured, str)]
    if not found:
        return "-"
    worst = max(found, key=lambda c: (not c.passed, c.measured))
    return f"{worst.measured:.3g} ({worst.limit:.3g})"


def in_training(material: Material) -> Table | None:
    """Each run that trained with kernels: what they replaced, how often they were launched."""
    verdict = material.verdict(NKI)
    runs = [one for one in material.launches if one.stage == NKI and one.kernels is not None]
    if verdict is None or not runs:
        return None
    header = ("run", "executed by", "modules replaced", "launches on a rank")
    return Table(
        (*header, "gradient of step 1 (limit)", "speed: judged by nothing"),
        tuple(_run(verdict, one) for one in runs),
        "Training with kernels, each run against the same one without",
    )


def _run(verdict: Verdict, one: LaunchFigures) -> tuple[str, ...]:
    kernels = one.kernels
    if kernels is None:
        return ()
    gradient = next((c for c in verdict.checks if c.name == f"{one.name}: {GRADIENT}"), None)
    counts = (f"{name} {count}" for name, count in sorted(kernels.launches.items()))
    replaced = (f"{name} {len(found)}" for name, found in sorted(kernels.replaced.items()))
    return (
        one.name,
        kernels.provider,
        ", ".join(replaced) or "none",
        ", ".join(counts) or "none",
        f"{gradient.measured:.2e} ({gradient.limit:.1e})" if gradient else "-",
        verdict.facts.get(f"{one.name}: speed", "-"),
    )


def compilations(material: Material) -> Table | None:
    """Each compiled launch: how long it compiled, into what, and the step that came of it."""
    runs = [one for one in material.launches if one.compilation is not None]
    header = (
        *("launch", "seconds in the compiler", "graphs", "compiled calls", "graph breaks"),
        *("compiled after step 1", "eager step s", "compiled step s", "compiled / eager (spread)"),
    )
    rows = tuple(_compiled(material, one) for one in runs)
    return Table(header, rows, "Compiled launches, each of its slowest rank") if rows else None


def _compiled(material: Material, one: LaunchFigures) -> tuple[str, ...]:
    found, verdict = one.compilation, material.verdict(one.stage)
    if found is None or verdict is None:
        return ()
    told = {
        key.removeprefix(f"{one.name}."): value
        for key, value in verdict.measures.items()
        if key.startswith(f"{one.name}.")
    }
    names = [f"compiled_over_eager{end}" for end in ("", "_least", "_most")]
    ratio, least, most = (told.get(name) for name in names)
    spread = f" ({least:.2f} to {most:.2f})" if least is not None and most is not None else ""
    return (
        one.place,
        f"{found.seconds:.1f}",
        str(found.graphs),
        f"{found.compiled_calls}/{found.calls}",
        str(len(found.breaks)),
        str(len(found.recompiles)),
        _seconds(told.get("eager_step_seconds")),
        _seconds(told.get("compiled_step_seconds")),
        f"{ratio:.2f}{spread}" if ratio is not None else "-",
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
