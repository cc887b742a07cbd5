"""Functions with declared layers are replaced by these alone."""

from __future__ import annotations

import ast
from collections import Counter

from ronde.patching import stacks
from ronde.patching.stacks import STACKS
from sources import trees

NAMES = {stack: name for name, stack in vars(stacks).items() if stack in STACKS}


def calls(method: str) -> list[ast.Call]:
    """Calls of this method of `patches`, in all files."""
    return [
        node
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
    ]


def test_no_function_with_layers_is_replaced_by_other_means() -> None:
    names = {stack.name for stack in STACKS}
    replaced = {ast.unparse(call) for call in calls("set") if len(call.args) == 3}
    found = {text for text in replaced if any(f"'{name}'" in text for name in names)}
    assert found == set()


def test_each_declared_layer_is_put_somewhere() -> None:
    put = Counter((ast.unparse(call.args[0]), ast.literal_eval(call.args[1])) for call in calls("layer"))
    loop = {("stack", "recording")}  # of recording.py, over three of them
    declared = {(NAMES[stack], layer) for stack in STACKS for layer in stack.layers}
    of_loop = {(name, "recording") for name in ("BACKWARD", "GRAD", "NEXT_BATCH")}
    assert put.keys() - loop == declared - of_loop
