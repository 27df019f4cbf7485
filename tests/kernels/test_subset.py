"""What NKI's compiler refuses as Python, and the interpreter cannot see.

Source: release-notes/components/nki.rst of the Neuron SDK (2.29, language restrictions) and
get-started/nki-language-guide.rst.
"""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import pytest

from trn_validate.kernels import expert_mlp_nki, rmsnorm, swiglu, tiles

MODULES = [expert_mlp_nki, rmsnorm, swiglu, tiles]
REFUSED = (ast.Raise, ast.Is, ast.IsNot, ast.Try, ast.With, ast.ListComp, ast.GeneratorExp)


def functions(module: ModuleType) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def reached(module: ModuleType) -> list[ast.FunctionDef]:
    """Kernels of the module and what they call, in whatever module that is."""
    known = {name: node for one in MODULES for name, node in functions(one).items()}
    queue = [node for node in functions(module).values() if _jit(node)]
    found: dict[str, ast.FunctionDef] = {}
    while queue:
        node = queue.pop()
        found[node.name] = node
        called = {
            one.func.id
            for one in ast.walk(node)
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)
        }
        queue += [known[name] for name in called & known.keys() if name not in found]
    return list(found.values())


def _jit(node: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "jit" for one in node.decorator_list)


@pytest.mark.parametrize("module", MODULES[:3], ids=lambda one: one.__name__.rpartition(".")[2])
def test_kernels_are_written_in_the_python_that_nki_compiles(module: ModuleType) -> None:
    nodes = reached(module)
    assert len(nodes) >= 5
    for function in nodes:
        assert not function.args.kwonlyargs, f"{function.name} has keyword-only arguments"
        found = [type(one).__name__ for one in ast.walk(function) if isinstance(one, REFUSED)]
        assert not found, f"{function.name} has {found}"
