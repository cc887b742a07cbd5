"""Entropy that a script asks the operating system for is the same on all ranks; a library's is not."""

from __future__ import annotations

import os
import random
import secrets
import sysconfig
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pydantic
import pytest

from ronde.patching.patches import Patches
from ronde.process import seeds


@contextmanager
def _alike(seed: int) -> Iterator[None]:
    patches = Patches()
    seeds.install(patches, seed)
    try:
        yield
    finally:
        patches.restore()


def _drawn(seed: int) -> list[Any]:
    with _alike(seed):
        by_function = pydantic.Field(default_factory=uuid.uuid4)
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
            pydantic.create_model("Run", name=(uuid.UUID, by_function))().name,  # pyright: ignore[reportAttributeAccessIssue]
            _by_library("mlflow.store.file_store", "uuid.uuid4()"),
        ]


def _by_library(module: str, expression: str) -> Any:
    """The value of an expression in a module that is installed."""
    place = os.path.join(sysconfig.get_path("purelib"), *module.split(".")) + ".py"
    names = {"__name__": module, "random": random, "secrets": secrets, "uuid": uuid, "os": os}
    return eval(compile(expression, place, "eval"), names)


def test_unseeded_draws_are_equal_where_the_seed_is() -> None:
    assert _drawn(1) == _drawn(1)
    for number, (one, other) in enumerate(zip(_drawn(1), _drawn(2), strict=True)):
        assert (one == other) == (number == 2)


@pytest.mark.parametrize(
    "expression",
    ["uuid.uuid4()", "uuid.uuid1()", "os.urandom(8)", "secrets.token_hex(8)", "random.Random().random()"],
)
def test_what_a_library_names_its_files_by_differs_between_ranks(expression: str) -> None:
    """numba's index, a download that is not complete, joblib's folder: ranks make them in one folder."""

    def name() -> Any:
        with _alike(1):
            return _by_library("numba.core.caching", expression)

    assert name() != name()


def test_a_name_that_a_library_draws_takes_nothing_from_the_script() -> None:
    def drawn(*before: str) -> uuid.UUID:
        with _alike(1):
            for expression in before:
                _by_library("numba.core.caching", expression)
            return uuid.uuid4()

    assert drawn("uuid.uuid4()", "random.Random().random()") == drawn()


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
