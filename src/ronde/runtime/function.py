"""A function in place of a script: `python -m ronde.runtime.function RUN_DIR`."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from ronde.launch.function import CALL, RESULT, read_call
from ronde.launch.pickle_by_value import dumps
from ronde.runtime.api import is_main
from ronde.runtime.plain_tensor import plain_tensor
from ronde.tensor.global_tensor import materialize

__all__ = ["main"]


def main(place: str) -> None:
    """Call the pickled function in the run directory; write its result there."""
    fn, args = read_call(Path(place, CALL).read_bytes())
    sys.argv[1:] = []
    result = _pickled(fn(*args))  # on every rank, because gathering what is cut is a collective
    if is_main():
        # The run directory is not mediated, so one rank may write alone.
        Path(place, RESULT).write_bytes(result)


def _pickled(result: Any) -> bytes:
    if importlib.util.find_spec("cloudpickle") is not None:
        return dumps(result, plain=plain_tensor)
    return pickle.dumps(_whole(result))


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        made = {key: _whole(each) for key, each in value.items()}
        return value if all(made[key] is value[key] for key in made) else made
    if type(value) in (list, tuple):
        return type(value)(_whole(each) for each in value)
    return materialize(value)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
