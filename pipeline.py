"""The command line: which plan, which stages, what they answered, and the exit status.

Exit status: 0 passed; 1 a check failed, or unsupported and not accepted; 2 usage,
configuration, or a folder that cannot be written; 3 the plan's device is not here; 4 a stage
could not measure; 5 stale or unreadable evidence; 130 and 143 interrupted; 141 the reader of
the output went away before it was told. stdout is for results, stderr for progress.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, ParamSpec

# Looking for plugins reads the metadata of every installed package: 40 ms, of which status has 300.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

import typer

from trn_validate.errors import Interrupted, TrnValidateError, exit_status

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    help="Staged validation of a Trainium training stack. Without a command: run.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Config = Annotated[
    Path | None, typer.Option(help="Plan to run; without it the host's signs choose one.")
]
ModelPath = Annotated[str, typer.Option("--path", help="Model path: native, transformers or moe.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Override one value of the plan: key.path=value.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine output alone.")]
Reports = Annotated[Path | None, typer.Option(help="Folder of the runs; reports/ by default.")]

P = ParamSpec("P")


def _answering(command: Callable[P, int]) -> Callable[P, None]:
    """Turn our errors into one message and an exit status; nobody sees a traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        # Whoever read our output may have gone; unsaid is not passed.
        status = 128 + signal.SIGPIPE
        try:
            status = command(*args, **kwargs)
            sys.stdout.flush()
        except TrnValidateError as error:
            print(f"error: {error}", file=sys.stderr)
            status = exit_status(error)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(status)

    return wrapped


@app.command()
@_answering
def run(
    config: Config = None,
    path: ModelPath = "native",
    only: Annotated[str | None, typer.Option(help="Rerun this stage alone.")] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="Rerun this stage and all after it.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Stop after this stage.")] = None,
    force: Annotated[bool, typer.Option(help="Run also what is still fresh.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Start a new run folder.")] = False,
    require_evidence: Annotated[
        bool, typer.Option("--require-evidence", help="Exit 3 on a rehearsal.")
    ] = False,
    kernel: Annotated[
        str | None, typer.Option(help="With --only kernels.nki: this kernel's op checks alone.")
    ] = None,
    settings: Settings = None,
    reports: Reports = None,
    json_: AsJson = False,
) -> int:
    """Run the stages in order; keep those that are still fresh."""
    from stages import stages_of
    from trn_validate.runner import run_plan
    from trn_validate.selection import Selection

    _heed_signals()
    asked = settings or []
    chosen = Selection(
        only=only,
        start=from_,
        until=until,
        force=force,
        new=new,
        require_evidence=require_evidence,
    )
    if kernel is not None:
        from trn_validate.trying import try_kernel

        return try_kernel(config, path, asked, chosen, kernel, reports=reports, as_json=json_)
    return run_plan(stages_of, config, path, asked, chosen, reports=reports, as_json=json_)


def _heed_signals() -> None:
    """Turn a signal into an error of ours, so that what was started is ended and told of."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted(signum)


@app.command()
@_answering
def plan(
    config: Config = None,
    path: ModelPath = "native",
    settings: Settings = None,
    reports: Reports = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compute whether rungs hold on 2 to 64 nodes."),
    ] = False,
    json_: AsJson = False,
) -> int:
    """Say what would run and why, with the exact commands; no device is touched."""
    if check:
        from trn_validate.scaling import show_check

        return show_check(config, path, settings or [], as_json=json_)
    from stages import stages_of
    from trn_validate.preview import show_plan

    return show_plan(stages_of, config, path, settings or [], reports=reports, as_json=json_)


@app.command()
@_answering
def status(
    config: Config = None,
    path: Annotated[str | None, typer.Option("--path", help="Model path.")] = None,
    settings: Settings = None,
    reports: Reports = None,
    json_: AsJson = False,
) -> int:
    """Say how the newest run stands, and exit as it does."""
    from stages import stages_of
    from trn_validate.commands import show_status

    return show_status(stages_of, config, path, settings or [], reports=reports, as_json=json_)


@app.command()
@_answering
def report(
    config: Config = None,
    path: Annotated[str | None, typer.Option("--path", help="Model path.")] = None,
    settings: Settings = None,
    reports: Reports = None,
) -> int:
    """Write report.md and report.html of the newest run again, and say where the former is."""
    from stages import stages_of
    from trn_validate.commands import write_report_again

    return write_report_again(stages_of, config, path, settings or [], reports=reports)


@app.command("vendor-run")
@_answering
def vendor_run(
    config: Config = None,
    path: ModelPath = "native",
    settings: Settings = None,
    reports: Reports = None,
) -> int:
    """Run the vendor's shipped config, unmodified, for a few steps; outside the gate."""
    from stages import stages_of
    from trn_validate.vendor_run import show_vendor_run

    _heed_signals()
    return show_vendor_run(stages_of, config, path, settings or [], reports=reports)


@app.command()
@_answering
def calibrate(
    repeats: Annotated[int, typer.Option("--repeats", min=2, help="How many controls to run.")] = 8,
    config: Config = None,
    path: ModelPath = "native",
    settings: Settings = None,
    reports: Reports = None,
    json_: AsJson = False,
) -> int:
    """Repeat the control run with other signs, and say how much the noise itself varies."""
    from stages import stages_of
    from trn_validate.calibrate import show_calibration

    _heed_signals()
    return show_calibration(
        stages_of, config, path, settings or [], repeats, reports=reports, as_json=json_
    )


@app.command()
@_answering
def answers(
    run: Annotated[str | None, typer.Argument(help="Name of a run; the newest by default.")] = None,
    reports: Reports = None,
    json_: AsJson = False,
) -> int:
    """Print what only a Trn2 can tell, with the answers of a run, and what is a guess."""
    from trn_validate.review.answers import show_answers

    return show_answers(run, reports=reports, as_json=json_)


@app.command()
@_answering
def bundle(
    run: Annotated[str | None, typer.Argument(help="Name of a run; the newest by default.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write; beside the run if not.")
    ] = None,
    limit: Annotated[str, typer.Option(help="Largest file of tensors to take.")] = "1MiB",
    reports: Reports = None,
) -> int:
    """Pack a run into one archive that a reviewer can verify."""
    from stages import stages_of
    from trn_validate.review.bundle import show_bundle

    return show_bundle(run, output, limit, stages_of, reports=reports)


@app.command()
@_answering
def verify(
    bundle: Annotated[Path, typer.Argument(help="A bundle: a folder or an archive.")],
    json_: AsJson = False,
) -> int:
    """Compute again all that a bundle says, without torch; 5 where it says something else."""
    from stages import stages_of
    from trn_validate.review.verify import show_verification

    return show_verification(bundle, stages_of, as_json=json_)


@app.command()
@_answering
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders or bundles of two runs or more.")],
    md: Annotated[bool, typer.Option("--md", help="Markdown on stdout, the default.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
    json_: AsJson = False,
) -> int:
    """Show runs side by side, and say what of them cannot be compared."""
    from stages import stages_of
    from trn_validate.review.compare import show_comparison

    return show_comparison(runs, stages_of, html=html, as_json=json_, as_text=md)


@app.command()
@_answering
def index(
    reports: Annotated[Path | None, typer.Argument(help="Folder of the runs.")] = None,
) -> int:
    """Write index.html of a folder of runs: by time, decision, stack, drift of key numbers."""
    from stages import stages_of
    from trn_validate.review.index import write_index
    from trn_validate.session import REPORTS

    return write_index(reports or REPORTS, stages_of)


@app.command()
@_answering
def stages() -> int:
    """List the stages and what each asks."""
    from stages import FAMILIES

    width = max(len(family.name) for family in FAMILIES)
    for family in FAMILIES:
        print(f"{family.name:<{width}}  {family.asks}")
    return 0


@app.command()
@_answering
def schema() -> int:
    """Print the JSON Schema of a verdict."""
    from trn_validate.verdict import Verdict

    print(json.dumps(Verdict.model_json_schema(mode="serialization"), indent=2, sort_keys=True))
    return 0


def _tools_on_path() -> None:
    """Let ranks find neuronx-cc and torchrun also where nobody activated the environment."""
    own = str(Path(sys.executable).parent)
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if own not in folders:
        os.environ["PATH"] = os.pathsep.join([own, *folders])


def main() -> None:
    """Run the command line; options without a command belong to ``run``."""
    if len(sys.argv) == 1 or (sys.argv[1].startswith("-") and sys.argv[1] != "--help"):
        sys.argv.insert(1, "run")
    _tools_on_path()
    # The end of the process frees everything; looking for cycles in it first takes 60 ms.
    atexit.register(gc.freeze)
    app()


if __name__ == "__main__":
    main()
