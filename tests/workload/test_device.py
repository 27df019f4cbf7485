from __future__ import annotations

import ast
import importlib.util
import inspect
import mmap
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trn_validate.workload.device import CpuDeviceModule

UNUSED = {"experiments", "profiler.py"}
"""Parts of torchtitan that no plan reaches: the experiments, and the memory profiler."""


def torchtitan_sources() -> list[Path]:
    spec = importlib.util.find_spec("torchtitan")
    assert spec is not None and spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    return [
        path
        for path in sorted(root.rglob("*.py"))
        if not UNUSED & set(path.relative_to(root).parts)
    ]


def calls(path: Path) -> Iterator[ast.Call]:
    """Calls of a function of ``device_module`` in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name == "device_module":
                yield node


MADE = [call for path in torchtitan_sources() for call in calls(path)]
NAMES = sorted({call.func.attr for call in MADE if isinstance(call.func, ast.Attribute)})


@pytest.fixture
def module() -> CpuDeviceModule:
    return CpuDeviceModule("cpu_device_module")


def test_the_calls_that_torchtitan_makes_were_found() -> None:
    assert set(NAMES) >= {"set_device", "memory_stats", "get_device_name", "synchronize"}


@pytest.mark.parametrize("name", NAMES)
def test_every_call_that_torchtitan_makes_is_answered(module: CpuDeviceModule, name: str) -> None:
    assert callable(getattr(module, name))


@pytest.mark.parametrize(
    "call", MADE, ids=lambda call: f"{ast.unparse(call).split('device_module.')[-1]}"
)
def test_every_call_that_torchtitan_makes_has_arguments_that_fit(
    module: CpuDeviceModule, call: ast.Call
) -> None:
    assert isinstance(call.func, ast.Attribute)
    signature = inspect.signature(getattr(module, call.func.attr))
    signature.bind(*call.args, **{str(k.arg): k.value for k in call.keywords})


def test_the_answers_are_of_the_types_that_torchtitan_reads(module: CpuDeviceModule) -> None:
    device = torch.device("cpu", 0)
    assert module.get_device_name(device) == "cpu"
    assert module.current_device() == 0
    properties = module.get_device_properties(0)
    assert properties.name == "cpu"
    assert properties.total_memory > 2**20
    module.set_device(device)
    module.synchronize()
    module.empty_cache()
    module.reset_peak_memory_stats()


def test_memory_is_counted_in_bytes_under_the_names_of_an_allocator(
    module: CpuDeviceModule,
) -> None:
    stats = module.memory_stats(0)
    assert set(stats) == {
        "active_bytes.all.peak",
        "reserved_bytes.all.peak",
        "num_alloc_retries",
        "num_ooms",
    }
    assert stats["active_bytes.all.peak"] > 2**20
    assert stats["reserved_bytes.all.peak"] < module.get_device_properties().total_memory
    # Mapped, since an allocator may hand out memory that other tests have used and freed.
    with mmap.mmap(-1, 64 * 2**20) as held:
        held.write(b"x" * len(held))
        grown = module.memory_stats()
    assert grown["active_bytes.all.peak"] - stats["active_bytes.all.peak"] > 32 * 2**20


def test_a_name_that_torch_does_not_have_either_is_an_attribute_error(
    module: CpuDeviceModule,
) -> None:
    with pytest.raises(AttributeError, match="no_such_call"):
        module.no_such_call()


INSTALL = """
import sys, torchtitan.tools.utils as utils
utils.device_type = sys.argv[1]
from trn_validate.workload.device import CpuDeviceModule, install
try:
    install(sys.argv[2])
except RuntimeError as error:
    print("refused:", error)
else:
    import torchtitan.distributed.utils as copied
    same = copied.device_module is utils.device_module
    print(utils.device_type, isinstance(utils.device_module, CpuDeviceModule), same)
"""


def install(found: str, planned: str) -> str:
    """What ``install`` does in a process in which torchtitan found that device."""
    done = subprocess.run(
        [sys.executable, "-c", INSTALL, found, planned],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


def test_a_plan_for_the_cpu_makes_torchtitan_use_it_everywhere() -> None:
    assert install("cuda", "cpu") == "cpu True True"


def test_a_device_that_torchtitan_did_not_find_is_refused_with_both() -> None:
    assert install("cuda", "neuron") == (
        "refused: the plan's device is neuron, but torchtitan would use cuda: "
        "the backend that registers it did not load"
    )


def test_a_device_that_torchtitan_found_is_left_as_it_is() -> None:
    assert install("neuron", "neuron").startswith("neuron False ")
