"""Whether the script would catch an exception that a call raises, found by walking up the stack.

Read from the source: a handler counts unless it takes only exceptions that no computation raises
(`KeyboardInterrupt`), or ends with a `raise` and has no other way out. Of `with` statements only those count
whose names are known to swallow exceptions (`contextlib.suppress`).
"""

from __future__ import annotations

import ast
import io
import linecache
import os
import sysconfig
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

from ronde.trace.script_line import RONDE

__all__ = ["INSTALLED", "TryStatements", "caught_lines"]

# What a computation on some rows does not raise.
_OTHERS = frozenset(
    "KeyboardInterrupt SystemExit GeneratorExit StopIteration StopAsyncIteration ImportError "
    "ModuleNotFoundError".split()
)
_SWALLOWING = frozenset("suppress raises assertRaises assertRaisesRegex".split())
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)
_TRIES: tuple[Any, ...] = (ast.Try, getattr(ast, "TryStar", ast.Try))  # since Python 3.11
_LEAVING = (ast.Return, ast.Break, ast.Continue)

_STANDARD, INSTALLED = (
    tuple({os.path.join(sysconfig.get_path(name), "") for name in names})
    for names in (("stdlib", "platstdlib"), ("purelib", "platlib"))
)

Scope = tuple[str, int]
"""Name and first line of a function, as its code has them."""


class TryStatements:
    """Remembers for each place in the code whether a `try` stands around it.

    Args:
        libraries: folders whose code is looked past, besides ronde's and the standard library.
    """

    def __init__(self, *libraries: str) -> None:
        self._libraries = (RONDE, *(os.path.join(folder, "") for folder in libraries))
        # By id of the code, which is held: to hash a code object takes longer than the rest. None: no `try`.
        self._known: dict[int, tuple[CodeType, dict[int, bool] | None]] = {}
        self._files: dict[str, dict[Scope, list[range]] | None] = {}

    def catch(self, frame: FrameType | None, outermost: CodeType | None = None) -> bool:
        """Whether some frame at or above this one would catch an exception where it stands.

        Args:
            outermost: frames at and above one of this code are not asked.
        """
        while frame is not None and frame.f_code is not outermost:
            code = frame.f_code
            known = self._known.get(id(code))
            if known is None:
                known = self._known[id(code)] = code, {} if self._may_catch(code) else None
            places = known[1]
            if places is not None:
                place = frame.f_lasti
                caught = places.get(place)
                if caught is None:
                    caught = places[place] = self._is_caught(frame)
                if caught:
                    return True
            frame = frame.f_back
        return False

    def _may_catch(self, code: CodeType) -> bool:
        table = getattr(code, "co_exceptiontable", None)  # since Python 3.11
        return table != b"" and not self._is_passed_over(code.co_filename)

    def _is_passed_over(self, file: str) -> bool:
        path = os.path.abspath(file)
        standard = path.startswith(_STANDARD) and not path.startswith(INSTALLED)
        return standard or path.startswith(self._libraries) or file.startswith("<frozen ")

    def _is_caught(self, frame: FrameType) -> bool:
        code = frame.f_code
        if code.co_filename not in self._files:
            self._files[code.co_filename] = _read(code.co_filename)
        scopes = self._files[code.co_filename]
        if scopes is None:
            return True  # who knows
        first = 0 if code.co_name == "<module>" else code.co_firstlineno
        return any(frame.f_lineno in lines for lines in scopes.get((code.co_name, first), ()))


def caught_lines(source: str | bytes) -> dict[Scope, list[range]]:
    """For each function of a source, and ("<module>", 0), the lines on which it catches exceptions.

    Raises:
        SyntaxError: if it is no Python.
    """
    found: dict[Scope, list[range]] = {}
    _walk(ast.parse(source).body, ("<module>", 0), found)
    return found


def _read(file: str) -> dict[Scope, list[range]] | None:
    """As `caught_lines`; None where there is no source."""
    try:
        if file in linecache.cache:  # a cell of a notebook is nowhere else
            return caught_lines("".join(linecache.getlines(file)))
        with io.open_code(os.path.abspath(file)) as opened:
            return caught_lines(opened.read())
    except (OSError, SyntaxError, ValueError):
        return None


def _walk(nodes: Iterable[ast.AST], scope: Scope, found: dict[Scope, list[range]]) -> None:
    for node in nodes:
        inner = scope
        if isinstance(node, _SCOPES):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            inner = (
                getattr(node, "name", "<lambda>"),
                min(node.lineno, *(each.lineno for each in decorators), node.lineno),
            )
        elif _swallows(node):
            body: list[ast.stmt] = node.body  # pyright: ignore[reportAttributeAccessIssue]
            found.setdefault(scope, []).append(range(body[0].lineno, (body[-1].end_lineno or 0) + 1))
        _walk(ast.iter_child_nodes(node), inner, found)


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    if handler.type is not None and all(_last_name(kind) in _OTHERS for kind in kinds):
        return False
    ends = isinstance(handler.body[-1], ast.Raise)
    return not ends or any(isinstance(node, _LEAVING) for node in _own(handler.body))


def _swallows(node: Any) -> bool:
    """Whether it is a statement that lets exceptions of a computation go no further."""
    if isinstance(node, (ast.With, ast.AsyncWith)):
        calls = (item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call))
        return any(
            _last_name(call.func) in _SWALLOWING
            and not (call.args and all(_last_name(each) in _OTHERS for each in call.args))
            for call in calls
        )
    if not isinstance(node, _TRIES):
        return False
    return any(map(_catches, node.handlers)) or any(
        isinstance(each, _LEAVING) for each in _own(node.finalbody)
    )


def _own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """What stands in statements, but for functions made there."""
    for node in body:
        yield node
        if not isinstance(node, _FUNCTIONS):
            yield from _own(ast.iter_child_nodes(node))


def _last_name(node: ast.AST | None) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))
