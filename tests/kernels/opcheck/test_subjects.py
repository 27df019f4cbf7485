from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trn_validate.errors import KernelError
from trn_validate.kernel_entry import Kernel
from trn_validate.kernel_list import load_kernels, named
from trn_validate.kernels import expert_mlp, rmsnorm, swiglu
from trn_validate.kernels.opcheck import __main__ as process
from trn_validate.kernels.opcheck.run import check_names
from trn_validate.kernels.opcheck.subjects import subject_of

KERNELS = load_kernels()
SWIGLU = named(KERNELS, "swiglu")
LAUNCHES = {one.__name__.rpartition(".")[2]: one.LAUNCHES for one in (rmsnorm, swiglu, expert_mlp)}


def wrong_function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Plain torch, which launches nothing."""
    return swiglu.reference(x, y)


def unlaunchable(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A kernel that breaks a rule."""
    raise KernelError("300 partitions", where="swiglu_forward")


@pytest.mark.parametrize("entry", KERNELS, ids=lambda entry: entry.name)
def test_the_list_counts_the_launches_that_the_kernels_make(entry: Kernel) -> None:
    assert entry.launches == LAUNCHES[entry.name]


def test_constants_go_to_both_functions() -> None:
    subject = subject_of(named(KERNELS, "rmsnorm"))
    x, weight = torch.full((2, 4), 1e-3), torch.ones(4)
    expected = rmsnorm.reference(x, weight, 1e-6)
    assert torch.equal(subject.reference(x, weight), expected)
    assert torch.allclose(subject.function(x, weight), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("op", "told"),
    [
        ("no_such_module:op", "No module named 'no_such_module'"),
        ("trn_validate.kernels.swiglu:missing", "has no attribute 'missing'"),
        ("trn_validate.kernels.swiglu:LAUNCHES", "is no function"),
    ],
)
def test_what_cannot_be_imported_is_named_with_its_kernel(op: str, told: str) -> None:
    with pytest.raises(KernelError, match=told) as caught:
        subject_of(SWIGLU.model_copy(update={"op": op}))
    assert caught.value.where == "kernel swiglu"


def run(entry: Kernel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    (folder / "kernel.json").write_text(entry.model_dump_json(), encoding="utf-8")
    files = [str(folder / name) for name in ("kernel.json", "answer.json")]
    monkeypatch.setattr("sys.argv", ["opcheck", *files])
    process.main()
    found: dict[str, object] = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    return found


def test_the_process_makes_the_checks_of_the_dtypes_that_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"dtypes": ("float32",), "op": f"{__name__}:wrong_function"}
    entry = SWIGLU.model_copy(update=changes)
    found = run(entry, tmp_path, monkeypatch)
    owed = list(check_names(subject_of(entry), [torch.float32]))
    assert found["owed"] == owed
    made = found["checks"]
    assert isinstance(made, list) and [one["name"] for one in made] == owed
    assert found["provider"] == "interpreter" and "error" not in found


@pytest.mark.parametrize("op", [f"{__name__}:unlaunchable", "no_such_module:op"])
def test_a_kernel_that_cannot_be_launched_leaves_the_reason_and_no_check(
    op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(SWIGLU.model_copy(update={"op": op}), tmp_path, monkeypatch)
    assert found["checks"] == [] and found["error"]
