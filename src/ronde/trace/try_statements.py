"""Static check whether the script would catch an exception of a call.

It walks up the stack, and reads the sources. A handler counts unless it catches only exceptions that no
computation raises (`KeyboardInterrupt`), or always ends with a `raise`. A `with` counts if its manager is
known to swallow exceptions (`contextlib.suppress`), or if the manager's code does so.
"""

from __future__ import annotations

import ast
import inspect
import os
import sysconfig
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import Any

from ronde.trace.catching_source import (
    CatchVisitor,
    Scope,
    is_generator,
    returned,
    returns_truth,
    scope_of,
    swallows_by_name,
    yields,
)
from ronde.trace.script_line import RONDE, is_library

__all__ = ["INSTALLED", "TryStatements"]

_STANDARD, INSTALLED = (
    tuple({os.path.join(sysconfig.get_path(name), "") for name in names})
    for names in (("stdlib", "platstdlib"), ("purelib", "platlib"))
)


class TryStatements:
    """Cache of places in the code that are inside of a `try`.

    Args:
        libraries: folders of code to ignore, besides ronde's and the standard library.
    """

    def __init__(self, *libraries: str) -> None:
        self._libraries = (RONDE, *(os.path.join(folder, "") for folder in libraries))
        # By id of the code object, which is kept alive, because hashing it would be slow. None: no `try`.
        self._known: dict[int, tuple[CodeType, dict[int, bool] | None]] = {}
        self._files: dict[str, CatchVisitor | None] = {}
        self._managers: dict[tuple[str, Scope], bool] = {}

    def catch(self, frame: FrameType | None, outermost: CodeType | None = None) -> bool:
        """Return whether a frame at or above this one would catch an exception.

        Args:
            outermost: code object; frames at and above a frame of it are not searched.
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
                    scope = _scope(code)
                    caught = self._is_caught(code.co_filename, scope, frame.f_lineno, _names(frame))
                    places[place] = caught
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

    def _source(self, file: str) -> CatchVisitor | None:
        if file not in self._files:
            self._files[file] = CatchVisitor.of(file)
        return self._files[file]

    def _is_caught(self, file: str, scope: Scope, line: int, names: dict[str, Any]) -> bool:
        source = self._source(file)
        if source is None:
            return True  # a value that is not known
        if any(line in lines for lines in source.caught.get(scope, ())):
            return True
        inside = [each for lines, each in source.managed.get(scope, ()) if line in lines]
        return any(self._is_swallowing(file, source, each, names) for each in inside)

    def _is_swallowing(self, file: str, source: CatchVisitor, item: ast.expr, names: dict[str, Any]) -> bool:
        """Return whether the manager that an expression makes may swallow exceptions."""
        if swallows_by_name(item):
            return True
        if isinstance(item, ast.IfExp):
            return any(self._is_swallowing(file, source, each, names) for each in (item.body, item.orelse))
        made = item.func if isinstance(item, ast.Call) else item
        manager = _resolved(made, names)
        if manager is None:  # the value of a local variable is not read, because that would keep it alive
            called = getattr(made, "attr", getattr(made, "id", ""))
            return any(self._swallows(file, each, names) for each in source.definitions.get(called, ()))
        code, globals_ = _code_of(manager)
        if code is None or self._is_passed_over(code.co_filename):
            return False
        other = self._source(code.co_filename)
        named = [] if other is None else other.definitions.get(code.co_name, [])
        found = [each for each in named if scope_of(each) == _scope(code)]
        if not found:
            return not is_library(os.path.abspath(code.co_filename))
        return self._swallows(code.co_filename, found[0], globals_)

    def _swallows(self, file: str, node: Any, names: dict[str, Any]) -> bool:
        """Return whether a manager of this class, or of this function, may swallow exceptions."""
        key = file, scope_of(node)
        if key not in self._managers:
            self._managers[key] = False  # for a manager that uses itself
            self._managers[key] = self._look(file, node, names)
        return self._managers[key]

    def _look(self, file: str, node: Any, names: dict[str, Any]) -> bool:
        if isinstance(node, ast.ClassDef):
            return any(returns_truth(each) for each in node.body if getattr(each, "name", "") == "__exit__")
        if is_generator(node):
            return any(self._is_caught(file, scope_of(node), line, names) for line in yields(node))
        if getattr(node, "name", "") == "__exit__":
            return returns_truth(node)
        source = self._source(file)
        assert source is not None
        return any(self._is_swallowing(file, source, each, names) for each in returned(node))


def _scope(code: CodeType) -> Scope:
    return code.co_name, 0 if code.co_name == "<module>" else code.co_firstlineno


def _names(frame: FrameType) -> dict[str, Any]:
    """Return the names with known values, without reading local variables."""
    code = frame.f_code
    local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    if local.isdisjoint(frame.f_globals):
        return frame.f_globals
    return {name: value for name, value in frame.f_globals.items() if name not in local}


def _resolved(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return the value of `a.b.c` without running code; None if unknown."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    holder = _resolved(node.value, names)
    found = None if holder is None else inspect.getattr_static(holder, node.attr, None)
    return getattr(found, "fget", getattr(found, "__func__", found))


def _code_of(manager: Any) -> tuple[CodeType | None, dict[str, Any]]:
    """Return the code that exits or makes a manager, and its names."""
    frame = getattr(getattr(manager, "gen", None), "gi_frame", None)
    if frame is not None and isinstance(manager, AbstractContextManager):
        return frame.f_code, frame.f_globals
    if inspect.isroutine(manager):
        function: Any = inspect.unwrap(manager)
    else:
        kind = manager if inspect.isclass(manager) else type(manager)
        function = getattr(kind, "__exit__", None)
    return getattr(function, "__code__", None), getattr(function, "__globals__", {})
