"""Which stages a person asks to run, and what is refused of it before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trn_validate.errors import ConfigError, EvidenceError, UsageError
from trn_validate.gate import named
from trn_validate.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which stages to run, and what counts as done."""

    only: str | None = None
    start: str | None = None
    until: str | None = None
    force: bool = False
    new: bool = False
    require_evidence: bool = False

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ConfigError: ``--only`` with ``--from`` or ``--until``.
        """
        for name, stage in (("--from", self.start), ("--until", self.until)):
            if self.only and stage:
                raise ConfigError(f"--only and {name} exclude each other", where="command line")

    @property
    def begin(self) -> str | None:
        """The stage to begin with, where one is named."""
        return self.only or self.start

    def check_stage(self, stages: Sequence[Stage], source: str) -> None:
        """Refuse a stage that the plan does not have, and an end before the beginning.

        Raises:
            UsageError: says which stages it has, or in which order they come.
        """
        places = [stages.index(named(stages, x, source)) for x in (self.begin, self.until) if x]
        if places != sorted(places):
            raise UsageError(
                f"{self.until} comes before {self.begin}",
                where="--from and --until",
                todo=f"The order is {', '.join(stage.id for stage in stages)}.",
            )

    def check_first(self, first: Stage, why: str) -> None:
        """Refuse a stage in the middle where there is no run to continue, and say why not.

        Raises:
            EvidenceError: names the first stage.
        """
        if self.begin is not None and self.begin != first.id:
            raise EvidenceError(
                f"{self.begin} stands behind {first.id}, and there is no run to continue "
                f"({why or 'none was started'}); nothing was run",
                todo="Run everything first: make validate",
            )
