"""A notebook's cell on one rank: `python -m ronde.runtime.cell RUN_DIR`.

Its variables come in, it runs, and they go back.
"""

from __future__ import annotations

import builtins
import gc
import hashlib
import io
import os
import sys
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch

from ronde.launch.cell import Cell, CellResult, code_of, names_of, put_states, states, unpicklable
from ronde.launch.function import CALL, RESULT
from ronde.launch.pickle_by_value import dump, dumps, learn_sources, loads
from ronde.runtime.api import is_main, prepare
from ronde.runtime.plain_tensor import plain_tensor

__all__ = ["run_cell"]

# Values, not objects that other variables may hold.
_VALUES = (int, float, complex, str, bytes, bool, type(None), types.ModuleType)


def run_cell(cell: Cell) -> CellResult:
    """Run a cell as this rank's script, and pack its variables.

    All ranks pack them, because gathering what is cut is a collective.
    """
    learn_sources({**cell.sources, cell.name: cell.source})
    main = types.ModuleType("__main__")
    home = vars(main)
    home["__builtins__"] = builtins
    sys.modules["__main__"] = main
    for variables in loads(cell.variables, home):
        home.update(variables)
    given = [name for name in home if not name.startswith("__")]
    # Models are adopted at their first call; optimizers that are not constructed here are not known yet.
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.optim.Optimizer):  # some objects warn of questions
            prepare(thing)
    before = {name: _digest(home[name], home) for name in given}
    if cell.states is not None:
        put_states(cell.states)
    # Pickled optimizers have no mark of their scheduler, of which torch would warn.
    warnings.filterwarnings("ignore", message="Seems like `optimizer.step.*has been overridden")
    for code in code_of(cell):
        exec(code, home)
    return _packed(cell, home, before)


def _packed(cell: Cell, home: dict[str, Any], before: Mapping[str, str]) -> CellResult:
    after = {name: _digest(home[name], home) for name in before if name in home}
    same = {name for name, digest in after.items() if digest == before[name] and digest}
    names = names_of(cell.source, cell.name).assigned | before.keys()
    wanted = {name: home[name] for name in sorted(names - same) if name in home}
    known = {id(home[name]): name for name in sorted(same) if not isinstance(home[name], _VALUES)}

    def pickled(value: Any, file: IO[bytes]) -> Mapping[str, str]:
        return dump(value, file, home=home, known=known, takes_globals=False, plain=plain_tensor)

    left = unpicklable(wanted, lambda value: pickled(value, cast("IO[bytes]", _Digest())))
    file = io.BytesIO()
    sources = pickled({name: value for name, value in wanted.items() if name not in left}, file)
    return CellResult(
        variables=file.getvalue(),
        sources={**sources, cell.name: cell.source},
        deleted=[name for name in before if name not in home],
        left=left,
        states=None if cell.states is None else states(cell.states),
    )


def _digest(value: Any, home: Mapping[str, Any]) -> str:
    """Return a digest of a value's contents; "" if it cannot be pickled any more."""
    file = _Digest()
    try:
        dump(value, cast("IO[bytes]", file), home=home, takes_globals=False, plain=plain_tensor)
    except Exception:  # pickling runs code of the user's objects
        return ""
    return file.hexdigest()


class _Digest:
    """Digest of everything that is written, as a file."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.hexdigest = self._hash.hexdigest

    def write(self, data: Any) -> int:
        self._hash.update(data)
        return len(memoryview(data))


def main(place: str) -> None:
    """Run the pickled cell in the run directory; write its result there."""
    cell = Cell.read(Path(place, CALL).read_bytes())
    sys.argv[1:] = []
    result = dumps(run_cell(cell))
    if is_main():
        # The run directory is not mediated, so one rank may write alone.
        Path(place, RESULT).write_bytes(result)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
