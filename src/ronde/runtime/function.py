"""A function in place of a script: `python -m ronde.runtime.function RUN_DIR`."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

from ronde.launch.function import CALL, RESULT, read_call
from ronde.runtime.api import is_main

__all__ = ["main"]


def main(place: str) -> None:
    """Call the pickled function in the run directory; write its result there."""
    fn, args = read_call(Path(place, CALL).read_bytes())
    sys.argv[1:] = []
    result = _whole(fn(*args))  # on every rank, because gathering a tensor is a collective
    if is_main():
        # The run directory is not mediated, so one rank may write alone.
        Path(place, RESULT).write_bytes(_pickled(result))


def _whole(value: Any) -> Any:
    from ronde.tensor.global_tensor import materialize

    if isinstance(value, dict):
        made = {key: _whole(each) for key, each in value.items()}
        return value if all(made[key] is value[key] for key in made) else made
    if type(value) in (list, tuple):
        return type(value)(_whole(each) for each in value)
    return materialize(value)


def _pickled(result: Any) -> bytes:
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(result)
    return cloudpickle.dumps(result)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
