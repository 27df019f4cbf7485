"""What a seeded defect is: what it stands for, where it goes in, and what has to stop it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Defect:
    """One defect of a launch, or of several launches of a stage."""

    name: str
    stands_for: str
    """The class of bug, in a sentence."""
    hook: str
    """``module:function`` below tests.defects."""
    stage: str
    """The stage that has to fail."""
    launches: tuple[str, ...]
    """Launches of the stage that have the defect."""
    follow: tuple[str, ...] = ()
    """Launches that read what those wrote, so that they are repeated too."""
    caught_by: tuple[str, ...]
    """Checks of which each has to say no."""
    located: str
    """Pattern that the text of one of these has to hold: the rank, step, part or parameter."""

    @property
    def import_path(self) -> str:
        """The hook as a run spec takes it."""
        return f"tests.defects.{self.hook}"


def in_rung(name: str, rung: str, hook: str, stands_for: str, *caught: str, located: str) -> Defect:
    """A defect of one rung, which is held against the ladder's reference."""
    return Defect(
        name=name,
        stands_for=stands_for,
        hook=hook,
        stage=f"parallelism.{rung}",
        launches=(rung,),
        caught_by=tuple(f"{rung}: {what}" for what in caught),
        located=located,
    )


LOSS, NORM, ROWS = (
    "loss against the reference",
    "grad norm against the reference",
    "steps with other rows",
)
GRADIENT, PARAMETERS = "gradient of step 1", "parameters after the last step"
REPLICAS = "replicas agree"
