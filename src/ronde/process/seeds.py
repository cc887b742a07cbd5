"""Makes sources of randomness equal on all ranks.

Unseeded generators take their entropy from the operating system; here it comes from one stream, equal on all
ranks and fixed by the run's seed. So a script that seeds nothing stays in step.

Identifiers, bytes and generators that a library asks for stay the operating system's: it names temporary
files, locks and sockets by them, in folders that ranks share.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import uuid
import weakref
from typing import Any

import numpy
import torch

from ronde.patching.caller import called_by_script
from ronde.patching.patches import Patches

__all__ = ["install", "seed_all"]

# Libraries that name the script's run, and the folder of its files, by an identifier.
_TRACKERS = ("aim.", "clearml.", "comet_ml.", "mlflow.", "neptune.", "optuna.", "swanlab.")
# Modules that call functions of the script: `Field(default_factory=uuid4)`.
_RELAYS = ("pydantic.main", "pydantic._internal._dataclasses")


def seed_all(seed: int) -> None:
    """Seed torch (all devices), numpy's and Python's global generators alike."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


class _Entropy(random.Random):
    """Stream of entropy; a forked process gets its own branch of it.

    The names that a process makes are then unique.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name, self.forks = name, 0

    def branch(self) -> None:
        self.__init__(f"{self.name} {self.forks}")


_streams: weakref.WeakSet[_Entropy] = weakref.WeakSet()


def _before_fork() -> None:
    for stream in _streams:
        stream.forks += 1


def _after_in_child() -> None:
    for stream in _streams:
        stream.branch()


os.register_at_fork(before=_before_fork, after_in_child=_after_in_child)


def install(patches: Patches, seed: int) -> None:
    entropy = _Entropy(f"ronde entropy {seed}")
    _streams.add(entropy)
    plain_bytes, plain_method = os.urandom, random.Random.seed

    def identifier(plain: Any, version: int) -> Any:
        @functools.wraps(plain)
        def make(*args: Any) -> uuid.UUID:
            if not args and called_by_script(*_RELAYS, or_by=_TRACKERS) and _on_main_thread():
                return uuid.UUID(int=entropy.getrandbits(128), version=version)
            return plain(*args)

        return make

    def urandom(size: int, /) -> bytes:
        # `SystemRandom` and `secrets` get their bytes here for the script; libraries' tokens stay secrets.
        if called_by_script("random", "secrets") and _on_main_thread():
            return entropy.randbytes(size)
        return plain_bytes(size)

    def seed_generator(generator: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and generator is not entropy and called_by_script("random") and _on_main_thread():
            a = entropy.getrandbits(128)
        plain_method(generator, a, version)

    def seed_torch() -> int:
        chosen = entropy.getrandbits(63)
        torch.manual_seed(chosen)
        return chosen

    # The source of entropy for `default_rng()`, `RandomState()` and `seed()` without a seed.
    patches.set(numpy.random.bit_generator, "randbits", entropy.getrandbits)
    patches.set(uuid, "uuid1", identifier(uuid.uuid1, 1))
    patches.set(uuid, "uuid4", identifier(uuid.uuid4, 4))
    for owner, name in ((os, "urandom"), (random, "_urandom")):
        patches.set(owner, name, urandom)
    patches.set(random.Random, "seed", seed_generator)
    patches.set(random, "seed", random._inst.seed)  # pyright: ignore[reportAttributeAccessIssue]
    for owner in (torch, torch.random):
        patches.set(owner, "seed", seed_torch)


def _on_main_thread() -> bool:
    """Return whether this is the main thread.

    Other threads draw at any time, so a shared stream would differ between ranks.
    """
    return threading.current_thread() is threading.main_thread()
