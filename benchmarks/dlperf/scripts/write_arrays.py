"""Write the initial weights and the batches of a case, from a fixed seed."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from torch_models import make


def write(case):
    sizes, samples = case["sizes"], case["batch"] * (case["warm_up"] + case["steps"])
    torch.manual_seed(0)
    arrays = {f"weight:{name}": value.numpy() for name, value in make(case).state_dict().items()}
    draw = np.random.default_rng(0)
    if case["model"] == "resnet":
        arrays["inputs"] = draw.standard_normal((samples, 3, sizes["image"], sizes["image"]), np.float32)
        arrays["targets"] = draw.integers(sizes["classes"], size=(samples, 1))
    else:
        arrays["inputs"] = draw.integers(sizes["vocabulary"], size=(samples, sizes["length"]))
        words = draw.integers(sizes["vocabulary"], size=(samples, sizes["masked"]))
        arrays["targets"] = np.hstack([words, draw.integers(sizes["classes"], size=(samples, 1))])
    np.savez(case["arrays"], **arrays)


if __name__ == "__main__":
    write(json.loads(sys.argv[1]))
