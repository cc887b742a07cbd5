"""Errors and notes that are written in place end with a code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from sources import SOURCE, trees

# Rooms whose errors are read by developers of ronde only.
_FOR_DEVELOPERS = ("testing/", "bench/workloads/")
_NOTES = {"say", "note", "say_instead", "_note"}


def error_classes() -> set[str]:
    """Return the names of all exception classes that derive from those in `ronde.errors`."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"RondeError", "PeerLost"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def uncoded(tree: ast.AST, errors: set[str]) -> Iterator[int]:
    """Yield the lines of messages in place, of several words, without a code at their end."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in errors | _NOTES:
            continue
        for argument in node.args:
            text = in_place(argument)
            if (
                len(re.findall(r"[a-z]{2,}", text)) > 1
                and " " in text
                and not re.search(r" \[R[1-9]\d\d\]$", text)
            ):
                yield argument.lineno


def in_place(node: ast.AST) -> str:
    """Return the text of a string in place, with "\\0" for values; empty for another expression."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(in_place(part) if isinstance(part, ast.Constant) else "\0" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (in_place(node.left) or "\0") + (in_place(node.right) or "\0")
    return ""


def test_messages_have_codes() -> None:
    errors = error_classes()
    found = [
        f"{name}:{line}"
        for path, tree in trees().items()
        if not (name := path.relative_to(SOURCE).as_posix()).startswith(_FOR_DEVELOPERS)
        for line in uncoded(tree, errors)
    ]
    assert found == [], "end these messages with a code: ... [R104]"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('raise UsageError("no such plan")', [1]),
        ('raise UsageError("no such plan [R104]")', []),
        ('raise UsageError(f"no plan {name}; " "write one [R104]")', []),
        ('say(f"no plan {name}")', [1]),
        ('notes.say("no plan: " + name + " [R104]")', []),
        ("raise UsageError(reason)", []),
        ('raise ValueError("of an invariant, say")', []),
    ],
)
def test_what_is_found(source: str, lines: list[int]) -> None:
    assert list(uncoded(ast.parse(source), {"UsageError"})) == lines
