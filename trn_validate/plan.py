"""How a file becomes the plan of one model path: read, overridden, checked.

Whatever is wrong is answered with the place, the numbers and the remedy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trn_validate import yaml_file
from trn_validate.config import LadderSection, Plan, PlanFile
from trn_validate.errors import ConfigError
from trn_validate.explain import checked
from trn_validate.kernel_list import LIST, load_kernels
from trn_validate.ladder import check_ladders
from trn_validate.spreading import check_nodes, of_nodes


def load(path: Path, *, model_path: str = "native", settings: Iterable[str] = ()) -> Plan:
    """Read, override and check a plan.

    Raises:
        ConfigError: with the place, the numbers and what to do.
    """
    raw = yaml_file.read(path)
    chosen = tuple(settings)
    yaml_file.override(raw, chosen)
    file = parse(raw, where=str(path))
    section = file.paths.get(model_path)  # type: ignore[call-overload]  # any text may be asked for
    if section is None:
        raise ConfigError(
            f"the plan has no path {model_path!r}",
            where=str(path),
            todo=f"It has: {', '.join(file.paths)}.",
        )
    plan = Plan(
        target=file.target,
        path=model_path,  # type: ignore[arg-type]  # a key of file.paths
        source=str(path),
        settings=chosen,
        profile=file.profile,
        limits=file.limits,
        timeouts=file.timeouts,
        launcher=file.launcher,
        nodes=file.nodes,
        rendezvous_port=file.rendezvous_port,
        node_limits=file.node_limits,
        accept_unsupported=file.accept_unsupported,
        kernels=load_kernels(Path(file.kernels) if file.kernels else LIST),
        kernel_pairs=file.kernel_pairs,
        ladders=_with_data(of_nodes(section.ladders, file.nodes), where=str(path)),
    )
    check_nodes(plan)
    check_ladders(plan)
    return plan


def parse(raw: dict[str, Any], *, where: str) -> PlanFile:
    """Check a mapping against the schema.

    Raises:
        ConfigError: the first thing that is wrong, and how many more there are.
    """
    see = "configs/ for examples and docs/plan.md for every key"
    return checked(PlanFile, raw, where=where, see=see)


def _with_data(ladders: tuple[LadderSection, ...], *, where: str) -> tuple[LadderSection, ...]:
    """Fill in the digest of each text file, so that the plan names what it trains on."""
    done = []
    for ladder in ladders:
        data = ladder.workload.data
        if data.kind == "text":
            if not data.path:
                raise ConfigError(
                    f"ladder {ladder.name}: data.kind is text, but data.path is missing",
                    where=where,
                )
            try:
                digest = hashlib.sha256(Path(data.path).read_bytes()).hexdigest()
            except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
                reason = error.strerror if isinstance(error, OSError) else error
                raise ConfigError(
                    f"ladder {ladder.name}: the text cannot be read ({reason})",
                    where=yaml_file.printable(data.path),
                ) from None
            if data.sha256 not in (None, digest):
                raise ConfigError(
                    f"ladder {ladder.name}: its sha256 is {digest}, the plan says {data.sha256!r}",
                    where=yaml_file.printable(data.path),
                )
            workload = ladder.workload.model_copy(
                update={"data": data.model_copy(update={"sha256": digest})}
            )
            ladder = ladder.model_copy(update={"workload": workload})
        done.append(ladder)
    return tuple(done)
