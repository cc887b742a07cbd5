"""Lines of the user's code that ask for the exact class of a parameter, which one in parts does not have.

`type(p) is nn.Parameter` cannot be answered by anybody but Python, nor noticed when it is asked. What a
script does with the answer it does without a word: it clips nothing, or leaves parameters out of an
optimizer. So its source is looked through once, at the end.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from ronde.trace.script_line import ScriptLine

__all__ = ["questions", "questions_of_script"]

_COMPARING = (ast.Is, ast.IsNot, ast.Eq, ast.NotEq, ast.In, ast.NotIn)


def questions_of_script() -> list[str]:
    """`file:line` of each, in all files of the user's that have been imported."""
    lines = ScriptLine()
    found: dict[str, None] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        name = lines.name(file)
        if name is not None:
            found.update(dict.fromkeys(f"{name}:{line}" for line in questions(_source(file))))
    return sorted(found)


def questions(source: str) -> Iterator[int]:
    """Lines with a comparison of `type(...)` and something called Parameter.

    >>> list(questions("kept = [p for p in ps if type(p) is nn.Parameter]"))
    [1]
    >>> list(questions("isinstance(p, Parameter) or type(p) is Tensor"))
    []
    """
    if "Parameter" not in source:
        return
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a module that no longer is what was imported
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare) or not all(isinstance(each, _COMPARING) for each in node.ops):
            continue
        sides = [node.left, *node.comparators]
        if any(map(_is_type, sides)) and any(map(_names_parameter, sides)):
            yield node.lineno


def _source(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"


def _names_parameter(node: ast.expr) -> bool:
    names = (getattr(each, "attr", getattr(each, "id", None)) for each in ast.walk(node))
    return not _is_type(node) and "Parameter" in names
