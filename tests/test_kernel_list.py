from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders import ROOT
from trn_validate import yaml_file
from trn_validate.errors import ConfigError, UsageError
from trn_validate.kernel_list import LIST, load_kernels, named

RAW = yaml_file.read(LIST)
Entry = dict[str, Any]


def written(folder: Path, change: Callable[[list[Entry]], object]) -> Path:
    raw = copy.deepcopy(RAW)
    change(raw["kernels"])
    path = folder / "kernels.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def shapes(**changes: object) -> Callable[[list[Entry]], object]:
    return lambda entries: entries[0]["shapes"].update(changes)


def test_the_list_of_the_checkout_has_the_kernels_that_are_ours() -> None:
    assert LIST == ROOT / "configs/kernels.yaml"
    kernels = load_kernels()
    assert [kernel.name for kernel in kernels] == ["rmsnorm", "swiglu", "expert_mlp"]
    models = {kernel.name: kernel.override.model for kernel in kernels if kernel.override}
    assert models == {"rmsnorm": "rung", "swiglu": "rung", "expert_mlp": "experts"}
    assert all(kernel.dtypes == ("float32", "bfloat16") for kernel in kernels)


def test_every_module_that_an_entry_names_is_told(tmp_path: Path) -> None:
    (kernel, *_) = load_kernels()
    assert kernel.modules == (
        "torchtitan.models.common.nn_modules",
        "trn_validate.kernels.overrides",
        "trn_validate.kernels.rmsnorm",
    )
    path = written(tmp_path, lambda entries: entries[1].pop("override"))
    assert load_kernels(path)[1].modules == ("trn_validate.kernels.swiglu",)


def test_what_the_ranks_are_told_is_that_of_the_entry(tmp_path: Path) -> None:
    use = load_kernels()[0].use
    assert (use.name, use.override) == ("rmsnorm", "trn_validate.kernels.overrides.rmsnorm")
    assert use.launches == {"rmsnorm_forward": 1, "rmsnorm_backward": 1}
    alone = load_kernels(written(tmp_path, lambda entries: entries[1].pop("override")))[1]
    with pytest.raises(ValueError, match="swiglu has no override"):
        _ = alone.use


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (shapes(ragged=[[128, 300], [300]]), r"ragged is \(128, 300\)"),
        (shapes(ragged=[[130, 256], [256]]), r"ragged is \(130, 256\)"),
        (shapes(one_row=[[2, 40], [40]]), r"one_row is \(2, 40\)"),
        (shapes(many_rows=[[256, 40], [40]]), r"many_rows is \(256, 40\)"),
        (shapes(small=[[5, 9]]), "different numbers of tensors"),
        (shapes(small=[[5, 0], [9]]), "greater than or equal to 1"),
        (shapes(tiny=[[5, 9], [9]]), "unknown key 'tiny'"),
        (lambda entries: entries[0].update(op="rmsnorm"), "op: "),
        (lambda entries: entries[0].update(launches={}), "launches: "),
        (lambda entries: entries[0].update(dtypes=["float16"]), "dtypes"),
        (lambda entries: entries[0].update(refrence="a:b"), "Did you mean 'reference'"),
        (lambda entries: entries[0]["override"].update(model="mine"), "model"),
        (
            lambda entries: entries.append(copy.deepcopy(entries[0])),
            "two kernels are named 'rmsnorm'",
        ),
        (lambda entries: entries.clear(), "kernels: "),
        (lambda entries: entries.__delitem__(slice(0, 2)), "no kernel has an override"),
    ],
)
def test_an_entry_that_cannot_hold_is_refused_with_its_place(
    tmp_path: Path, change: Callable[[list[Entry]], object], told: str
) -> None:
    path = written(tmp_path, change)
    with pytest.raises(ConfigError, match=told) as caught:
        load_kernels(path)
    assert caught.value.where == str(path)


def test_a_kernel_that_is_not_listed_is_refused_with_those_that_are() -> None:
    kernels = load_kernels()
    assert named(kernels, "swiglu") is kernels[1]
    with pytest.raises(UsageError, match="There are: rmsnorm, swiglu, expert_mlp"):
        named(kernels, "rope")
