"""The loop of all scripts.

A script is called with the case as JSON. It trains on the batches of a file of arrays, and prints a line with
the seconds and the loss of each step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

MARK = "dlperf-line "


class Engine:
    """One process of a framework.

    Attributes:
        rank, ranks: the number of this process, and of all.
        threads: the threads that it may compute with.
        version: the framework's.
    """

    rank = int(os.environ.get("DLPERF_RANK", "0"))
    ranks = int(os.environ.get("DLPERF_RANKS", "1"))
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    version = ""

    def __init__(self, case, arrays):
        self.case = case
        self.inputs, self.targets = arrays["inputs"], arrays["targets"]
        self.weights = {
            name[len("weight:") :]: value for name, value in arrays.items() if name.startswith("weight:")
        }

    def batches(self) -> Any:
        """Return this rank's rows of every global batch, as DistributedSampler chooses them."""
        for start in range(0, len(self.inputs), self.case["batch"]):
            mine = slice(start + self.rank, start + self.case["batch"], self.ranks)
            yield self.inputs[mine], self.targets[mine]

    def step(self, inputs, targets):
        """Train on a batch, and return its loss when that is known."""
        raise NotImplementedError

    def close(self):
        """Leave the group."""


def run(make):
    """Train, and print the figures."""
    case = json.loads(sys.argv[1])
    with np.load(case["arrays"]) as file:
        engine = make(case, dict(file))
    seconds, losses = [], []
    begun = time.perf_counter()
    for inputs, targets in engine.batches():
        losses.append(float(engine.step(inputs, targets)))
        ended = time.perf_counter()
        seconds.append(ended - begun)
        begun = ended
    told = {"rank": engine.rank, "seconds": seconds, "losses": losses, "version": engine.version}
    print(MARK + json.dumps(told), flush=True)
    engine.close()
