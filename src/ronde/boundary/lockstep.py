"""Sources of randomness that would differ between processes are made equal on all ranks.

Unseeded generators take their entropy from the operating system; here it comes from one stream, equal on
all ranks and fixed by the run's seed. So a script that seeds nothing stays in step.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

import numpy
import torch

from ronde.boundary.patches import Patches

__all__ = ["install", "seed_all"]


def seed_all(seed: int) -> None:
    """Seed torch (all devices), numpy's and Python's global generators alike."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def install(patches: Patches, seed: int) -> None:
    entropy = random.Random(f"ronde entropy {seed}")
    _install_numpy(patches, entropy)
    _install_python(patches, entropy)
    _install_torch(patches, entropy)


def _install_numpy(patches: Patches, entropy: random.Random) -> None:
    # What `default_rng()`, `RandomState()` and `seed()` without a seed ask for entropy.
    patches.set(numpy.random.bit_generator, "randbits", entropy.getrandbits)


def _install_python(patches: Patches, entropy: random.Random) -> None:
    plain = random.seed

    def seed(a: Any = None, version: int = 2) -> None:
        plain(entropy.getrandbits(128) if a is None else a, version)

    patches.set(random, "seed", seed)
    patches.set(uuid, "uuid4", lambda: uuid.UUID(int=entropy.getrandbits(128), version=4))


def _install_torch(patches: Patches, entropy: random.Random) -> None:
    def seed() -> int:
        chosen = entropy.getrandbits(63)
        torch.manual_seed(chosen)
        return chosen

    patches.set(torch, "seed", seed)
    patches.set(torch.random, "seed", seed)
