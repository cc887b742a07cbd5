"""Search of the user's code for comparisons of exact tensor classes.

A sharded tensor has another class. `type(p) is nn.Parameter` cannot be intercepted, nor can `type(x) is
torch.Tensor` of a batch, an output or a loss. The script then silently takes another branch: it clips
nothing, leaves parameters out of an optimizer, scales no batch. So its source is searched once, at the end.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from ronde.patching.caller import file_of
from ronde.trace.script_line import ScriptLine

__all__ = ["notes_on_types", "questions", "questions_of_script"]

_COMPARING = (ast.Is, ast.IsNot, ast.Eq, ast.NotEq, ast.In, ast.NotIn)


def questions_of_script(called: str) -> list[str]:
    """List `file:line` of comparisons with a class of this name, in all user files.

    Files are those imported so far.
    """
    lines = ScriptLine()
    found: dict[str, list[int]] = {}
    for module in list(sys.modules.values()):
        file = file_of(module)
        if not file.endswith(".py"):
            continue
        name = lines.name(file)
        if name is not None:
            found[name] = sorted(set(_questions(_source(file), called)))
    return [f"{name}:{line}" for name in sorted(found) for line in found[name]]


def questions(source: str, called: str) -> Iterator[int]:
    """Yield the lines that compare `type(...)` with a class of this name.

    >>> list(questions("kept = [p for p in ps if type(p) is nn.Parameter]", "Parameter"))
    [1]
    >>> list(questions("isinstance(x, Tensor) or x.__class__.__name__ == 'Tensor'", "Tensor"))
    [1]
    >>> list(questions("isinstance(p, Parameter) or type(p) is Tensor", "Parameter"))
    []
    >>> list(questions("movers = {torch.Tensor: move}; movers[type(x)](x)", "Tensor"))
    [1]
    """
    if called not in source:
        return
    try:
        tree = ast.parse(source)
    except SyntaxError:  # the module's file has changed since its import
        return
    nodes = list(ast.walk(tree))
    keys = (key for node in nodes if isinstance(node, ast.Dict) for key in node.keys)
    keyed = any(key is not None and _names(key, called) for key in keys)
    for node in nodes:
        if isinstance(node, ast.Compare) and all(isinstance(each, _COMPARING) for each in node.ops):
            sides = [node.left, *node.comparators]
            if any(map(_is_type, sides)) and any(_names(side, called) for side in sides):
                yield node.lineno
        elif keyed and _looks_up_type(node):
            yield node.lineno


@functools.lru_cache(maxsize=256)
def _questions(source: str, called: str) -> tuple[int, ...]:
    """Cache `questions` by source: parsing takes longer than a short session does."""
    return tuple(questions(source, called))


def _source(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _is_type(node: ast.expr) -> bool:
    """Return whether a node is `type(x)`, `x.__class__`, or the name of either."""
    if isinstance(node, ast.Attribute) and node.attr in ("__name__", "__qualname__"):
        return _is_type(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"


def _names(node: ast.expr, called: str) -> bool:
    if _is_type(node):
        return False
    every = (
        getattr(each, "attr", getattr(each, "id", getattr(each, "value", ""))) for each in ast.walk(node)
    )
    return called in [each for each in every if isinstance(each, str)]


def _looks_up_type(node: ast.AST) -> TypeGuard[ast.expr]:
    """Return whether a node is `movers[type(x)]` or `movers.get(type(x))`."""
    if isinstance(node, ast.Subscript):
        return _is_type(node.slice)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return False
    return node.func.attr == "get" and _is_type(node.args[0])


def notes_on_types(*, parameters: bool, tensors: bool) -> list[str]:
    """Notes on the lines of the script that compare exact classes.

    Args:
        parameters: whether parameters are sharded.
        tensors: whether batches, outputs and losses are sharded.
    """
    asking = questions_of_script("Parameter") if parameters else []
    notes = [
        f"{place} compares type(...) with Parameter; a sharded parameter has a subclass, so this line skips "
        "it; write isinstance(..., torch.nn.Parameter) [R312]"
        for place in asking
    ]
    places = ", ".join(questions_of_script("Tensor")) if tensors else ""
    if places:
        notes.append(
            f"{places}: type(...) is compared with Tensor; sharded batches, outputs and losses have a "
            "subclass, so these lines skip them; write isinstance(..., torch.Tensor) [R312]"
        )
    return notes
