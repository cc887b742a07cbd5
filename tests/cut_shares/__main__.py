"""`make shares` writes the table of docs/concepts/meshes.md: which mesh divides which share of which model.

make shares ARGS="Llama context=2"      # one cell
"""

from __future__ import annotations

import argparse
import os
import sys

# Before torch is imported: as in the tests (see conftest.py).
os.environ.setdefault("OMP_NUM_THREADS", "1")

from cut_shares.measure import MESHES, shares
from cut_shares.models import MODELS
from cut_shares.table import write
from ronde.testing.run_ranks import RankPool


def main() -> int:
    parser = argparse.ArgumentParser(prog="make shares", description=__doc__)
    parser.add_argument("model", nargs="?", choices=MODELS)
    parser.add_argument("mesh", nargs="?", choices=MESHES)
    asked = parser.parse_args()
    models = [asked.model] if asked.model else list(MODELS)
    found = {}
    for mesh in [asked.mesh] if asked.mesh else list(MESHES):
        for model in models:
            pool = RankPool(MESHES[mesh], timeout=120)
            try:
                found[model, mesh] = shares(model, mesh, pool.run)
            finally:
                pool.close()
            print(model, mesh, found[model, mesh], flush=True)
    if not asked.model:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
