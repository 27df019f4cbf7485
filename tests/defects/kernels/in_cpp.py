"""Wrong kernels on raw memory, compiled by the machine's C++ compiler.

The interpreter hands kernels checked tensors. A compiled kernel gets pointers: it can misread
strides, leave memory as it was allocated, or write where it only may read.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from tests.defects.kernels.mutant import Mutant
from tests.kernels.ours import SWIGLU
from trn_validate.kernels.opcheck.subject import Subject

SOURCE = Path(__file__).with_name("swiglu.cpp")
COMPILER = os.environ.get("CXX", "c++")

_number = itertools.count()
"""An operator cannot be registered twice."""


def missing() -> str:
    """Why these kernels cannot be built here, or nothing."""
    for tool in (COMPILER, "ninja"):
        if not shutil.which(tool, path=_path()):
            return f"no {tool} on this machine, which compiled kernels need"
    return ""


def _path() -> str:
    """Where tools are looked for: this environment's own too, which need not be active."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


@cache
def _built() -> Any:
    # A folder of its own: torch's shared one waits for ever for a build that was killed.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("PATH", _path())
        cpp_extension.load(
            "defects_cpp",
            [str(SOURCE)],
            # Loops of a few thousand numbers: to optimise them takes longer than to run them.
            extra_cflags=["-O0"],
            build_directory=folder,
            is_python_module=False,
        )
    return torch.ops.defects_cpp


def swiglu(fault: int) -> Subject:
    """SwiGLU as it is checked, by compiled code with this fault; 0 is none."""
    built, number = _built(), next(_number)

    def body(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = built.forward(gate, up, fault)
        return found

    def back(
        grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        of_gate, of_up = built.backward(grad, gate, up, fault)
        return of_gate, of_up

    two = tuple[torch.Tensor, torch.Tensor]
    for one in (body, back):
        one.__annotations__ = dict.fromkeys(one.__annotations__, torch.Tensor)
    back.__annotations__["return"] = two
    op = torch.library.custom_op(f"defects::cpp{number}", body, mutates_args=())
    op_back = torch.library.custom_op(f"defects::cpp{number}_back", back, mutates_args=())
    op.register_fake(lambda gate, up: gate.new_empty(gate.shape))
    op_back.register_fake(
        lambda grad, gate, up: (gate.new_empty(gate.shape), up.new_empty(up.shape))
    )

    def gradients(ctx: Any, grad: torch.Tensor) -> Any:
        return op_back(grad, *ctx.saved_tensors)

    def setup(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    op.register_autograd(gradients, setup_context=setup)
    return replace(SWIGLU, function=op)


def _mutant(fault: int, name: str, stands_for: str, family: str, check: str) -> Mutant:
    def build(patch: pytest.MonkeyPatch) -> Subject:
        return swiglu(fault)

    return Mutant(f"compiled: {name}", stands_for, build, family, check)


IN_CPP = (
    _mutant(
        1,
        "ignores strides",
        "a kernel that reads memory in order",
        "accuracy",
        "float32, not contiguous: largest error",
    ),
    _mutant(
        2,
        "leaves the last block unwritten",
        "a loop over whole tiles",
        "conduct",
        "float32: memory that nothing wrote",
    ),
    _mutant(
        3,
        "adds to uncleared memory",
        "an accumulator that is never set to zero",
        "conduct",
        "bfloat16: memory that nothing wrote",
    ),
    _mutant(
        4,
        "writes to the gradient",
        "a buffer that is used twice",
        "conduct",
        "float32: changed inputs",
    ),
    _mutant(
        5,
        "takes bfloat16 for float16",
        "a pointer that is cast to the wrong type",
        "accuracy",
        "bfloat16, ragged: largest error",
    ),
)
