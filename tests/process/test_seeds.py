"""Entropy that a script asks the operating system for is the ranks' common one; a library's is its own."""

from __future__ import annotations

import os
import random
import secrets
import uuid
from typing import Any

import numpy
import pytest

from ronde.patching.patches import Patches
from ronde.process import seeds


def _drawn(seed: int) -> list[Any]:
    patches = Patches()
    seeds.install(patches, seed)
    try:
        return [
            os.urandom(8),
            random.Random().random(),
            random.Random(3).random(),
            uuid.uuid4(),
            uuid.uuid1(),
            numpy.random.default_rng().random(),
            random.SystemRandom().random(),
            secrets.randbits(128),
            secrets.token_hex(8),
            secrets.choice(range(10**9)),
            random.SystemRandom().sample(range(10**9), 3),
            numpy.random.default_rng(secrets.randbits(128)).random(),
        ]
    finally:
        patches.restore()


def test_unseeded_draws_are_equal_where_the_seed_is() -> None:
    assert _drawn(1) == _drawn(1)
    for number, (one, other) in enumerate(zip(_drawn(1), _drawn(2), strict=True)):
        assert (one == other) == (number == 2)


def test_what_was_replaced_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced() -> list[Any]:
        system = random.SystemRandom
        return [
            os.urandom,
            uuid.uuid4,
            random.Random.seed,
            system.random,
            system.getrandbits,
            secrets.randbits,
        ]

    before = replaced()
    _drawn(1)
    assert replaced() == before


def test_each_forked_process_has_a_stream_of_its_own() -> None:
    """Files that three of them name by `uuid4` are three."""

    def names() -> list[str]:
        patches, found = Patches(), list[str]()
        seeds.install(patches, 1)
        try:
            for _ in range(2):
                reads, writes = os.pipe()
                if os.fork() == 0:
                    os.write(writes, uuid.uuid4().hex.encode())
                    os._exit(0)
                os.wait()
                found.append(os.read(reads, 32).decode())
                os.close(reads)
                os.close(writes)
            return [*found, uuid.uuid4().hex]
        finally:
            patches.restore()

    assert len(set(names())) == 3
    assert names() == names()
