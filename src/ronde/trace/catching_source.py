"""Static search of a source for lines inside of `try` or `with` statements."""

from __future__ import annotations

import ast
import io
import linecache
import os
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = [
    "CatchVisitor",
    "Scope",
    "is_generator",
    "returned",
    "returns_truth",
    "scope_of",
    "swallows_by_name",
    "yields",
]

# Exceptions that a computation on some rows does not raise.
_OTHERS = frozenset(
    "KeyboardInterrupt SystemExit GeneratorExit StopIteration StopAsyncIteration ImportError "
    "ModuleNotFoundError".split()
)
_SWALLOWING = frozenset("suppress raises assertRaises assertRaisesRegex".split())
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)
_TRIES: tuple[Any, ...] = (ast.Try, getattr(ast, "TryStar", ast.Try))  # since Python 3.11
_LEAVING = (ast.Return, ast.Break, ast.Continue)

Scope = tuple[str, int]
"""Name and first line of a function, as its code has them; of a module ("<module>", 0)."""


class CatchVisitor:
    """Exception handlers and context managers found in one source.

    Args:
        text: source code.

    Attributes:
        caught: lines that surely catch exceptions, for each function.
        managed: lines inside of other context managers, each with its expression, for each function.
        definitions: functions and classes by their names.

    Raises:
        SyntaxError: the source is not valid Python.
    """

    def __init__(self, text: str | bytes) -> None:
        self.caught: dict[Scope, list[range]] = {}
        self.managed: dict[Scope, list[tuple[range, ast.expr]]] = {}
        self.definitions: dict[str, list[Any]] = {}
        self._walk(ast.parse(text).body, ("<module>", 0))

    @classmethod
    def of(cls, file: str) -> CatchVisitor | None:
        """Read a file or a notebook cell; None without a source."""
        try:
            if file in linecache.cache:  # a notebook cell has no file
                return cls("".join(linecache.getlines(file)))
            with io.open_code(os.path.abspath(file)) as opened:
                return cls(opened.read())
        except (OSError, SyntaxError, ValueError):
            return None

    def _walk(self, nodes: Iterable[ast.AST], scope: Scope) -> None:
        for node in nodes:
            inner = scope
            if isinstance(node, _SCOPES):
                inner = scope_of(node)
                self.definitions.setdefault(inner[0], []).append(node)
            elif _swallows(node):
                self.caught.setdefault(scope, []).append(_lines(node))
            elif isinstance(node, (ast.With, ast.AsyncWith)):
                self.managed.setdefault(scope, []).extend(
                    (_lines(node), item.context_expr) for item in node.items
                )
            self._walk(ast.iter_child_nodes(node), inner)


def scope_of(node: Any) -> Scope:
    """Find the name and first line of a function or class, decorators included."""
    decorators = getattr(node, "decorator_list", ())
    return getattr(node, "name", "<lambda>"), min([node.lineno, *(each.lineno for each in decorators)])


def yields(node: Any) -> list[int]:
    """Find the lines on which a function yields."""
    return [each.lineno for each in _own(node.body) if isinstance(each, (ast.Yield, ast.YieldFrom))]


def is_generator(node: Any) -> bool:
    """Return whether a function is a generator."""
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and bool(yields(node))


def returned(node: Any) -> list[ast.expr]:
    """Find the expressions that a function returns."""
    return [each.value for each in _own(node.body) if isinstance(each, ast.Return) and each.value]


def returns_truth(node: Any) -> bool:
    """Return whether a function may return something else than None and False."""
    plain = (isinstance(each, ast.Constant) and each.value in (None, False) for each in returned(node))
    return not all(plain)


def swallows_by_name(item: ast.expr) -> bool:
    """Return whether a `with` item is known by name to swallow exceptions."""
    if not isinstance(item, ast.Call) or _last_name(item.func) not in _SWALLOWING:
        return False
    return not (item.args and all(_last_name(each) in _OTHERS for each in item.args))


def _lines(node: Any) -> range:
    return range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    if handler.type is not None and all(_last_name(kind) in _OTHERS for kind in kinds):
        return False
    ends = isinstance(handler.body[-1], ast.Raise)
    return not ends or any(isinstance(node, _LEAVING) for node in _own(handler.body))


def _swallows(node: Any) -> bool:
    """Return whether a statement surely catches exceptions of the computation inside it."""
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return any(swallows_by_name(item.context_expr) for item in node.items)
    if not isinstance(node, _TRIES):
        return False
    return any(map(_catches, node.handlers)) or any(
        isinstance(each, _LEAVING) for each in _own(node.finalbody)
    )


def _own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Iterate over the nodes of these statements, except inner functions."""
    for node in body:
        yield node
        if not isinstance(node, _FUNCTIONS):
            yield from _own(ast.iter_child_nodes(node))


def _last_name(node: ast.AST | None) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))
