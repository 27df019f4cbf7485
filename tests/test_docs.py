"""The documentation says nothing that the code does not know."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

import pipeline
from scripts import neuron_coverage
from stages import stages_of
from tests.builders import CONFIGS, ROOT
from trn_validate import errors, plan, yaml_file
from trn_validate.check import Basis, Check
from trn_validate.control import MEASURES
from trn_validate.launch import Cause
from trn_validate.limits import Limits
from trn_validate.verdict import (
    Artifact,
    Command,
    Compared,
    Execution,
    Host,
    Layout,
    Outcome,
    Problem,
    Thing,
    Verdict,
)

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
HOSTS = {"pip.repos.neuron.amazonaws.com", "download.pytorch.org", "github.com"}
EXAMPLE = "stages/environment_rendezvous.py"
"""The file that docs/adding-a-stage.md tells a reader to add."""

OF_A_RUN = ("reports", ".venv", "records", "ranks", "stacks")
"""First parts of paths that are not in the checkout."""
RUN_FILES = {"report.md", "plan.yaml", "environment.json", "spec.json", "launch.json"}
FOREIGN_OPTIONS = {
    "--extra-index-url",
    neuron_coverage.REHEARSAL,
    *("--check", "--ignore-missing"),
    *("--bundle", "--key", "--certificate-identity", "--certificate-oidc-issuer"),
    *("--exclusive", "--partition", "--nodes"),
}
"""Of pip, make coverage, sha256sum, cosign and Slurm."""

FENCE = re.compile(r"^( *)```[a-z]*\n(.*?)^\1```$", re.M | re.S)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+/?|[A-Za-z0-9_-]+/|[\w.-]+\.(?:py|md|toml)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
VARIABLE = re.compile(r"\b([A-Z][A-Z_]+)=")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[str]:
    return [found[2] for found in FENCE.finditer(text_of(page))]


def inline(page: Path) -> list[str]:
    return INLINE.findall(FENCE.sub("", text_of(page)))


def code(page: Path) -> str:
    """All that stands in code font."""
    return "\n".join([*blocks(page), *inline(page)])


def exists(path: str) -> bool:
    """Whether a path is in the checkout, or is one that the text may name all the same."""
    return path == EXAMPLE or path in RUN_FILES or (ROOT / path).exists()


def paths(page: Path) -> Iterator[str]:
    """Paths of the checkout that a page names: alone in code font, or as a word of a command."""
    spans = inline(page)
    for span in spans:
        if PATH.fullmatch(span) and span.split("/")[0] not in OF_A_RUN:
            yield span
    top = {path.name for path in ROOT.iterdir() if path.is_dir()} - set(OF_A_RUN)
    for word in re.split(r"[\s'\"=;()]+", "\n".join([*blocks(page), *spans])):
        if PATH.fullmatch(word) and word.split("/")[0] in top and "/" in word.rstrip("/"):
            yield word


def makefile(pattern: str) -> set[str]:
    return set(re.findall(pattern, text_of(ROOT / "Makefile"), re.M))


def known_options() -> set[str]:
    """Options of every command of the command line, and of the benchmark."""
    group = typer.main.get_command(pipeline.app)
    commands = group.commands.values()  # type: ignore[attr-defined]  # it is a group
    found = {
        option
        for command in commands
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    bench = re.findall(r'add_argument\("(--[a-z-]+)"', text_of(ROOT / "scripts/bench.py"))
    return found | set(bench) | {"--help"}


DTYPES = ("float32", "bfloat16")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_in_code_font_exists(page: Path) -> None:
    assert [path for path in paths(page) if not exists(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", text_of(page))):
        target, _, anchor = link.partition("#")
        file = page.parent / target if target else page
        assert file.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.+)$", text_of(file), re.M)
            assert anchor in {
                re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in heads
            }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_exists(page: Path) -> None:
    named = set(re.findall(r"(?:^|[\s;&])make ([a-z][a-z-]*)", code(page), re.M))
    assert named - makefile(r"^([a-z][a-z-]*):") == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_of_make_exists(page: Path) -> None:
    calls = [line for line in code(page).splitlines() if re.search(r"(^|\s)make [a-z]", line)]
    named = {name for line in calls for name in VARIABLE.findall(line)}
    assert named - makefile(r"^([A-Z_]+) \?=") == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_exists(page: Path) -> None:
    assert set(OPTION.findall(code(page))) - known_options() - FOREIGN_OPTIONS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_a_host_but_those_that_a_user_needs(page: Path) -> None:
    assert set(re.findall(r"https?://([\w.-]+)", text_of(page))) - HOSTS == set()


def test_the_pages_name_paths_targets_and_options_at_all() -> None:
    assert "configs/cpu.yaml" in list(paths(ROOT / "README.md"))
    assert "make validate" in code(ROOT / "README.md")
    assert "--require-evidence" in OPTION.findall(code(ROOT / "README.md"))
    assert "--require-evidence" in known_options()


def test_a_path_that_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`confgs/cpu.yaml` and `nothing.py`\n\n```\nrun stages/nothing.py\n```\n", encoding="utf-8"
    )
    assert [path for path in paths(page) if not exists(path)] == [
        "confgs/cpu.yaml",
        "nothing.py",
        "stages/nothing.py",
    ]


def test_the_sample_output_shows_the_stages_of_the_cpu_plan() -> None:
    wanted = [stage.id for stage in stages_of(plan.load(ROOT / "configs/cpu.yaml"))]
    sample = next(block for block in blocks(ROOT / "README.md") if block.startswith("REHEARSAL"))
    heads = re.findall(r"^\[(\d+)/(\d+)\] ([a-z0-9_.]+):", sample, re.M)
    assert [name for _, _, name in heads] == wanted
    assert [(int(n), int(of)) for n, of, _ in heads] == [
        (n + 1, len(wanted)) for n in range(len(wanted))
    ]
    assert re.findall(r"^ok +(\S+) +(\d+)/\2 checks", sample, re.M)
    assert [line.split()[1] for line in sample.splitlines() if line.startswith("ok")] == wanted
    assert f"all {len(wanted)} stages passed" in sample


def test_the_readme_has_every_outcome_target_and_exit_status() -> None:
    readme = text_of(ROOT / "README.md")
    words = {*Outcome, *(path.stem for path in CONFIGS)}
    assert [word for word in words if f"| `{word}` |" not in readme] == []
    rows = re.findall(r"^\| (\d[\d, ]*) \|", readme, re.M)
    stated = {int(number) for row in rows for number in row.split(",")}
    of_errors = {
        found.exit_status
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, errors.TrnValidateError)
    }
    assert stated >= of_errors | {0, 1, 130, 143}


def test_every_field_of_a_verdict_is_explained() -> None:
    page = text_of(ROOT / "docs/reading-a-verdict.md")
    types = (
        Verdict,
        Check,
        Basis,
        Host,
        Layout,
        Command,
        Artifact,
        Thing,
        Compared,
        Problem,
        Execution,
    )
    fields = {name for t in types for name in (*t.model_fields, *t.model_computed_fields)}
    assert [name for name in sorted(fields) if f"`{name}`" not in page] == []


def test_every_cause_is_explained() -> None:
    page = text_of(ROOT / "docs/reading-a-verdict.md")
    assert [cause for cause in Cause if f"`{cause}`" not in page] == []


@pytest.mark.parametrize("section", ["limits", "timeouts", "profile"])
def test_the_numbers_of_the_limits_page_are_those_of_the_plans(section: str) -> None:
    page = text_of(ROOT / "docs/limits.md").split(f"\n## {section}\n")[1].split("\n## ")[0]
    header, *rows = [line.strip("| ").split(" | ") for line in page.splitlines() if "|" in line]
    targets = [name.strip("`") for name in header[1 : len(CONFIGS) + 1]]
    assert targets == [path.stem for path in CONFIGS]
    stated = {row[0].strip("`"): row[1:] for row in rows[1:] if len(row) > len(CONFIGS)}
    if section == "limits":
        assert set(stated) == set(Limits.model_fields) - set(DTYPES)
    for place, path in enumerate(CONFIGS):
        file = plan.parse(yaml_file.read(path), where=str(path))
        in_force = getattr(file, section).model_dump()
        for key, values in stated.items():
            assert float(values[place]) == in_force[key], f"{path.name}: {key}"


def test_the_bounds_of_the_limits_page_are_those_of_the_plans() -> None:
    page = text_of(ROOT / "docs/limits.md").split("\n## deviations\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)\.(\w+)` \| ([\d.e-]+) \| ([\d.e-]+) \|", page, re.M)
    stated = {(dtype, key): (float(low), float(high)) for dtype, key, low, high in rows}
    assert set(stated) == {(d, key) for d in DTYPES for key in MEASURES}
    factors = dict(re.findall(r"^\| `(\w+)\.factor` \| ([\d.]+) \|", page, re.M))
    for path in CONFIGS:
        limits = plan.parse(yaml_file.read(path), where=str(path)).limits
        for (dtype, key), bounds in stated.items():
            section = getattr(limits, dtype)
            if section is not None:
                assert limits.factor_of(dtype) == float(factors[dtype])
                bound = getattr(section, key)
                assert (bound.floor, bound.ceiling) == bounds, f"{path.name}: {dtype}.{key}"


def test_the_tuple_of_the_example_is_the_real_one_and_one_entry_more() -> None:
    page = text_of(ROOT / "docs/adding-a-stage.md")
    entries = re.findall(r"^    (\w+)\.FAMILY,$", page, re.M)
    real = re.findall(r"^    (\w+)\.FAMILY,$", text_of(ROOT / "stages/__init__.py"), re.M)
    assert [entry for entry in entries if entry != Path(EXAMPLE).stem] == real
    assert len(entries) == len(real) + 1


def test_the_example_stage_passes_the_tests_of_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, entry, tests = PYTHON_BLOCK.findall(text_of(ROOT / "docs/adding-a-stage.md"))
    assert "FAMILIES" in entry
    name = f"stages.{Path(EXAMPLE).stem}"
    for module, source in ((name, stage), ("tests.example", tests)):
        made = ModuleType(module)
        monkeypatch.setitem(sys.modules, module, made)
        exec(compile(source, f"{module}.py", "exec"), made.__dict__)
    found = [(n, t) for n, t in vars(sys.modules["tests.example"]).items() if n.startswith("test_")]
    assert len(found) == 3
    for n, test in found:
        folder = tmp_path / n
        folder.mkdir()
        test(folder)


def test_the_probe_of_the_example_works_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.builders import load_plan
    from trn_validate.launch_local import LocalLauncher
    from trn_validate.stage import Place

    stage = PYTHON_BLOCK.findall(text_of(ROOT / "docs/adding-a-stage.md"))[0]
    made = ModuleType("stages.example")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile(stage, EXAMPLE, "exec"), made.__dict__)
    the_plan = load_plan(tmp_path)
    (member,) = made.FAMILY.members(the_plan)
    place = Place(plan=the_plan, private=tmp_path / "private", seed=Path())
    (request,) = member.launches(place)
    result = LocalLauncher().launch(request)
    assert result.cause is Cause.COMPLETED, result.what
    assert '"heard": "ping"' in text_of(request.folder / "answer.json")


def ours(suffix: str) -> list[Path]:
    """Files of the checkout with that ending, without what is installed, run or cached."""
    left_out = {".venv", "reports", "build", "__pycache__"}
    return [
        path
        for path in sorted(ROOT.rglob(f"*{suffix}"))
        if not left_out & set(path.relative_to(ROOT).parts)
        and not any(part.endswith("_cache") for part in path.relative_to(ROOT).parts)
    ]


@pytest.mark.parametrize("suffix", [".md", ".py"])
def test_every_text_is_ascii(suffix: str) -> None:
    files = ours(suffix)
    assert files
    assert [str(p.relative_to(ROOT)) for p in files if not p.read_bytes().isascii()] == []
