"""`make meshes` writes the table of docs/reference/plan.md; `make meshes ARGS="MESH VALUE"` tries one cell.

    make meshes ARGS="data=2,tensor=2 precision=bf16"                 # on both models
    make meshes ARGS="pipeline=2 recompute=full --model gpt"

A refused cell says why. A cell is legal as soon as `ronde.plan.mesh_rules` lets it through; what it is
compared with is in `meshes.training`, for compressors in `meshes.compressed`, for
averages of parameters in `meshes.replicas`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

# Before torch is imported: as in the tests (see conftest.py).
os.environ.setdefault("OMP_NUM_THREADS", "1")

from meshes import table
from meshes.axes import MESHES, VALUES, Cell, Standing
from meshes.trial import models_of, try_cell
from ronde.testing.run_ranks import RankPool


def main() -> int:
    parser = argparse.ArgumentParser(prog="make meshes", description=__doc__)
    parser.add_argument("mesh", nargs="?", choices=MESHES)
    parser.add_argument("value", nargs="?", choices=VALUES)
    parser.add_argument("--model", help="gpt, llama or mixtral; all that the mesh has by default")
    asked = parser.parse_args()
    if asked.mesh is None or asked.value is None:
        table.write()
        return 0
    cell = Cell(asked.mesh, asked.value)
    if cell.standing is not Standing.LEGAL:
        print("; ".join(cell.sentences))
        return 2
    pool = RankPool(cell.ranks, timeout=120)
    try:
        for model in [asked.model] if asked.model else models_of(cell.mesh):
            began = time.monotonic()
            try_cell(cell, model, pool.run)
            print(f"{cell.plan} {model}: as its reference, {time.monotonic() - began:.1f} s")
    finally:
        pool.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
