"""The example of docs/add-a-kernel.md is what a reader would type, and it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from tests.builders import ROOT
from trn_validate.kernel_entry import Kernel
from trn_validate.kernel_list import load_kernels
from trn_validate.workload import device

PAGE = (ROOT / "docs/add-a-kernel.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)
    return str(found)


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """The entry, its module in a folder that Python finds."""
    device.install("cpu")
    folder = tmp_path_factory.mktemp("example")
    (folder / "product.py").write_text(block("python"), encoding="utf-8")
    (folder / "my_kernels.yaml").write_text(block("yaml"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield load_kernels(folder / "my_kernels.yaml")[0]


def test_the_operator_of_the_example_passes_every_check(entry: Kernel) -> None:
    from trn_validate.kernels.opcheck.run import check_kernel, check_names
    from trn_validate.kernels.opcheck.subjects import subject_of

    subject = subject_of(entry)
    checks = check_kernel(subject)
    assert tuple(one.name for one in checks) == check_names(subject)
    assert [str(one) for one in checks if not one.passed] == []


def test_the_override_of_the_example_is_called_by_every_module(entry: Kernel) -> None:
    from torchtitan.config.override import OverrideConfig, apply_overrides
    from torchtitan.models.qwen3 import model_registry

    from trn_validate.workload.kernels import begin_counting, kernels_record

    config = model_registry("debugmodel").model
    config.layers = config.layers[:2]
    imports = ["trn_validate.workload.attention.causal", entry.use.override]
    apply_overrides(OverrideConfig(imports=imports), config)
    model = config.build()
    model.init_weights(buffer_device=torch.device("cpu"))
    begin_counting()
    tokens = torch.zeros((1, 8), dtype=torch.long)
    model(tokens, positions=torch.arange(8).expand(1, 8)).sum().backward()
    record = kernels_record([entry.use], [model])
    assert record.replaced == {"product": ("layers.0.feed_forward", "layers.1.feed_forward")}
    assert record.left == {"product": ()}
    assert record.launches == {name: 2 * n for name, n in entry.launches.items()}


def test_every_key_of_an_entry_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert rows == list(Kernel.model_fields)
