"""A notebook's cell, with the variables that go to ranks and come back."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import io
import os
import pickle
import symtable
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from ronde.errors import UsageError
from ronde.launch.pickle_by_value import dump, dumps, learn_sources, loads

__all__ = [
    "Cell",
    "CellNames",
    "CellResult",
    "code_of",
    "names_of",
    "pack",
    "put_states",
    "states",
    "unpack",
    "unpicklable",
]

# Of IPython's last results.
_UNDERSCORES = ("_", "__", "___")
# Module of each state of a notebook that decides numbers, and its functions that get and set it.
_STATES = {
    "python": ("random", "getstate", "setstate"),
    "numpy": ("numpy.random", "get_state", "set_state"),
    "torch": ("torch", "get_rng_state", "set_rng_state"),
    "dtype": ("torch", "get_default_dtype", "set_default_dtype"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Cell of a notebook, with the variables that it reads.

    Attributes:
        source: its text, the line of the magic first, so that lines are numbered as the user sees them.
        name: name of the cell in tracebacks.
        variables: pickle of the notebook's variables.
        sources: texts of earlier cells, by name, for tracebacks.
        states: the notebook's states, of random generators above all; None: those of the run's seed.
    """

    source: str
    name: str
    variables: bytes
    sources: Mapping[str, str]
    states: Mapping[str, Any] | None

    def pickled(self) -> bytes:
        """Pickle the cell, preceded by the import path of this process."""
        return pickle.dumps([os.path.abspath(each) for each in sys.path]) + dumps(self)

    @classmethod
    def read(cls, data: bytes) -> Cell:
        """Load a pickled cell, and use its import path."""
        file = io.BytesIO(data)
        sys.path[:] = pickle.load(file)
        return pickle.load(file)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CellResult:
    """The variables that come back.

    Attributes:
        variables: pickle of values by name.
        sources: texts of the code in it.
        deleted: names that the cell has deleted.
        left: reason for each variable that cannot be pickled.
        states: states after the cell; None where the notebook keeps its own.
    """

    variables: bytes
    sources: Mapping[str, str]
    deleted: Sequence[str]
    left: Mapping[str, str]
    states: Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True, slots=True)
class CellNames:
    """Names of variables that a cell reads, and that it assigns."""

    read: frozenset[str]
    assigned: frozenset[str]


def names_of(source: str, name: str) -> CellNames:
    """Find the variables of a cell.

    Raises:
        SyntaxError: the cell is not valid Python.
    """
    # `x += 1` and `del x` read too, which symtable does not tell.
    read = {
        name.id for node in ast.walk(ast.parse(_without_magic(source), name)) for name in _changed_by(node)
    }
    assigned: set[str] = set()
    for table in _tables(symtable.symtable(_without_magic(source), name, "exec")):
        for symbol in table.get_symbols():
            if table.get_type() != "module" and not symbol.is_global():
                continue
            if symbol.is_referenced():
                read.add(symbol.get_name())
            if symbol.is_assigned() or symbol.is_imported():
                assigned.add(symbol.get_name())
    return CellNames(frozenset(read - vars(builtins).keys()), frozenset(assigned - set(_UNDERSCORES)))


def code_of(cell: Cell) -> Iterator[Any]:
    """Compile a cell: all statements, the last one so that its value is shown."""
    tree = ast.parse(_without_magic(cell.source), cell.name)
    shown = tree.body[-1:] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
    if shown and not cell.source.rstrip().endswith(";"):
        del tree.body[-1]
        yield compile(tree, cell.name, "exec")
        yield compile(ast.Interactive(shown), cell.name, "single")
    else:
        yield compile(tree, cell.name, "exec")


def pack(
    source: str, name: str, home: Mapping[str, Any], label: Callable[[str], str], *, keeps_states: bool
) -> Cell:
    """Pack a cell with the variables of the notebook `home` that it reads.

    Args:
        label: function that names the cell of a file.
        keeps_states: whether the cell continues the notebook's random numbers.

    Raises:
        SyntaxError: the cell is not valid Python.
        UsageError: a variable cannot be pickled.
    """
    wanted = {each: home[each] for each in sorted(names_of(source, name).read) if each in home}
    # Variables inside of these: `trainer` has `model`. They are found while the first part is pickled.
    inside: dict[str, Any] = {}
    names = {id(value): each for each, value in home.items() if _is_held(each, value)}

    def see(value: Any) -> None:
        each = names.get(id(value))
        if each is not None:
            inside[each] = value

    file = io.BytesIO()
    try:
        sources = dump((wanted, inside), file, home=home, label=label, see=see)
    except Exception as error:  # pickling runs code of the user's objects
        culprits = unpicklable(wanted, lambda value: dumps(value, home=home))
        told = "; ".join(f"{each} ({why})" for each, why in culprits.items()) or str(error)
        raise UsageError(
            f"the cell reads what cannot be sent to the ranks: {told}; make it inside of the cell [R171]"
        ) from error
    return Cell(
        source=source,
        name=name,
        variables=file.getvalue(),
        sources=sources,
        states=states() if keeps_states else None,
    )


def unpack(result: CellResult, home: MutableMapping[str, Any]) -> None:
    """Update the variables of a notebook, `home`, from a result."""
    learn_sources(result.sources)
    for name, value in loads(result.variables, home).items():
        if name not in home or not _becomes(home[name], value):
            home[name] = value
    for name in result.deleted:
        home.pop(name, None)
    if result.states is not None:
        put_states(result.states)


def _is_held(name: str, value: Any) -> bool:
    """Return whether a variable is an object of the user's that others may hold."""
    values = (int, float, complex, str, bytes, bool, type(None), type, ModuleType, FunctionType)
    return not (name.startswith("_") or isinstance(value, values))


def _becomes(old: Any, new: Any) -> bool:
    """Give an object the state of another, for its holders; False if impossible.

    Both have one dictionary of attributes from here on, because objects that came with the new one hold that.
    """
    if type(old) is not type(new):
        return False
    if type(old) in (list, set, dict):
        if type(old) is list:
            old[:] = new
        else:
            old.clear()
            old.update(new)
        return True
    if not _is_plain(type(old)) or not hasattr(old, "__dict__"):
        return False
    object.__setattr__(old, "__dict__", vars(new))
    return True


def _is_plain(kind: type) -> bool:
    """Return whether objects of a class are their attributes and nothing else."""
    if issubclass(kind, (list, dict, set, frozenset, tuple, str, bytes, int, float, complex, type)):
        return False
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return False
    return not any(vars(each).get("__slots__") for each in kind.__mro__)


def unpicklable(values: Mapping[str, Any], pickled: Callable[[Any], object]) -> dict[str, str]:
    """Return the reason for each value that cannot be pickled."""
    found = {}
    for name, value in values.items():
        try:
            pickled(value)
        except Exception as error:  # pickling runs code of the user's objects
            found[name] = str(error) or type(error).__name__
    return found


def states(names: Iterable[str] = _STATES) -> dict[str, Any]:
    """Return states of random generators, and torch's default dtype, if imported."""
    rooms = {name: sys.modules[room] for name, (room, _, _) in _STATES.items() if room in sys.modules}
    return {name: getattr(rooms[name], _STATES[name][1])() for name in names if name in rooms}


def put_states(found: Mapping[str, Any]) -> None:
    """Set states that `states` has returned."""
    for name, state in found.items():
        room, _, put = _STATES[name]
        getattr(importlib.import_module(room), put)(state)


def _changed_by(node: ast.AST) -> Iterator[ast.Name]:
    targets = node.targets if isinstance(node, ast.Delete) else ()
    targets = (node.target,) if isinstance(node, ast.AugAssign) else targets
    yield from (target for target in targets if isinstance(target, ast.Name))


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for each in table.get_children():
        yield from _tables(each)


def _without_magic(source: str) -> str:
    return "\n" + source.partition("\n")[2]
