"""Prints what a formula of memory is made of: `python -m ronde.bench.memory.sizes WORKLOAD`.

A process of its own, because a workload's modules have names that are its own folder's.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys

from ronde.bench.contenders import FOLDER
from ronde.bench.memory.formula import Sizes
from ronde.policies.units import find_units

__all__ = ["main"]

# Numbers for each parameter that these optimizers keep.
_SLOTS = {"AdamW": 2, "SGD": 1}


def main(name: str) -> None:
    sys.path.insert(0, str(FOLDER))
    workload = importlib.import_module("catalogue").CATALOGUE[name]
    model = workload.model()
    parameters = list(model.parameters())
    sizes = Sizes(
        parameters=sum(each.numel() for each in parameters),
        largest_unit=max(sum(each.numel() for each in unit) for unit in find_units(model)),
        slots=_SLOTS[workload.optimizer.func.__name__],
        itemsize=parameters[0].itemsize,
    )
    sys.stdout.write(json.dumps(dataclasses.asdict(sizes)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
