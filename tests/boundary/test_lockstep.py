"""Entropy that a script asks the operating system for is the ranks' common one; a library's is its own."""

from __future__ import annotations

import os
import random
import uuid
from typing import Any

import numpy
import pytest

from ronde.boundary import lockstep
from ronde.boundary.patches import Patches


def _drawn(seed: int) -> list[Any]:
    patches = Patches()
    lockstep.install(patches, seed)
    try:
        return [
            os.urandom(8),
            random.Random().random(),
            random.Random(3).random(),
            uuid.uuid4(),
            numpy.random.default_rng().random(),
            random.SystemRandom().random() < 1,
        ]
    finally:
        patches.restore()


def test_unseeded_draws_are_equal_where_the_seed_is() -> None:
    assert _drawn(1) == _drawn(1)
    for number, (one, other) in enumerate(zip(_drawn(1), _drawn(2), strict=True)):
        assert (one == other) == (number in (2, 5))


def test_what_was_replaced_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.urandom, uuid.uuid4, random.Random.seed
    _drawn(1)
    assert (os.urandom, uuid.uuid4, random.Random.seed) == before
