"""Which of Python's and numpy's generators code may draw from is found by what its names stand for."""

from __future__ import annotations

import argparse
import random
import types
from collections.abc import Callable
from random import gauss
from typing import Any

import numpy as np
import numpy.random as npr
import pytest
import torch
from torch import nn
from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2Model

from ronde.boundary.named_hosts import hosts_in_model, hosts_in_samples
from ronde.boundary.reach import Reach
from ronde.rng.random_state import HOSTS, NUMPYS, PYTHONS

RANDOM: Any = np.random
RNG, STATE, OWN = np.random.default_rng(0), np.random.RandomState(0), random.Random(0)
SHARED = RANDOM.mtrand._rand
TWISTED = argparse.Namespace(random=False)
UNKNOWN = types.ModuleType("some_library")
UNKNOWN.random = types.ModuleType("some_library.random")  # type: ignore[attr-defined]


class Calls(nn.Module):
    """Its forward is a function; attributes are given."""

    def __init__(self, function: Callable[..., Any], **kept: Any) -> None:
        super().__init__()
        self.function = function
        vars(self).update(kept)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def _imports(m: Any, x: Any) -> Any:
    import random as dice

    return x * dice.random()


def _imports_numpy(m: Any, x: Any) -> Any:
    import numpy as numbers

    return x * numbers.random.rand()


def _deep(m: Any, x: Any) -> Any:
    def inner() -> Any:
        return random.choice([x, m])

    return inner()


def _closed(draw: Any) -> Callable[..., Any]:
    return lambda m, x: draw.random()


def _handed(m: Any, x: Any) -> Any:
    return _closed(np.random)(m, x)


CASES: dict[str, tuple[nn.Module, set[str]]] = {
    "python's": (Calls(lambda m, x: x + random.random()), {PYTHONS}),
    "a function of python's": (Calls(lambda m, x: gauss(0, 1)), {PYTHONS}),
    "in a function inside": (Calls(_deep), {PYTHONS}),
    "imported inside": (Calls(_imports), {PYTHONS}),
    "bound": (Calls(lambda m, x: m.draw(), draw=random.random), {PYTHONS}),
    "the module as an attribute": (Calls(lambda m, x: m.draw.random(), draw=random), {PYTHONS}),
    "the module in a closure": (Calls(_closed(random)), {PYTHONS}),
    "numpy's": (Calls(lambda m, x: np.random.rand()), {NUMPYS}),
    "numpy's by another name": (Calls(lambda m, x: npr.normal()), {NUMPYS}),
    "numpy's seed": (Calls(lambda m, x: np.random.seed(1)), {NUMPYS}),
    "numpy's, imported inside": (Calls(_imports_numpy), {NUMPYS}),
    "numpy's, bound": (Calls(lambda m, x: m.draw(2), draw=np.random.permutation), {NUMPYS}),
    "numpy's, handed on": (Calls(_handed), {NUMPYS}),
    "numpy's own object": (Calls(lambda m, x: SHARED.random_sample()), {NUMPYS}),
    "scipy's": (Calls(lambda m, x: m.law.rvs(), law=None), {NUMPYS}),
    "both": (Calls(lambda m, x: random.random() + np.random.rand()), {PYTHONS, NUMPYS}),
    "a library's": (Calls(lambda m, x: UNKNOWN.random.draw()), {PYTHONS, NUMPYS}),
    "generators of its own": (
        Calls(lambda m, x: RNG.random() + STATE.rand() + OWN.random() + random.Random(1).random()),
        set(),
    ),
    "one that it makes": (Calls(lambda m, x: np.random.default_rng(0).random()), set()),
    "one of its own, bound": (Calls(lambda m, x: m.draw(), draw=OWN.random), set()),
    "torch's": (Calls(lambda m, x: torch.rand(()) + torch.random.initial_seed()), set()),
    "torch's, seeded": (Calls(lambda m, x: torch.manual_seed(1) and torch.default_generator), set()),
    "an attribute of that name": (Calls(lambda m, x: x if m.random else -x, random=False), set()),
    "a setting of that name": (Calls(lambda m, x: x if TWISTED.random else -x), set()),
    "a layer": (nn.Linear(2, 2), set()),
}


def _reach(module: Any) -> Reach:
    reach = Reach()
    for part in module.modules():
        reach.visit(part)
    return reach


@pytest.mark.parametrize("name", CASES)
def test_a_model_draws_from_what_its_code_names(name: str) -> None:
    module, hosts = CASES[name]
    assert hosts_in_model(module, _reach(module)) == hosts


def test_a_librarys_model_may_draw_by_functions_beside_it() -> None:
    """It draws masks from numpy's generator, in a function of its file."""
    module = nn.Sequential()
    module.__class__ = type("Own", (Wav2Vec2Model,), {})  # type: ignore[assignment]
    assert hosts_in_model(module, Reach()) == {NUMPYS}


def test_an_object_of_a_librarys_in_a_data_set_may_draw_from_both() -> None:
    samples = Calls(lambda m, x: np.random.rand(), held=argparse.ArgumentParser())
    assert hosts_in_samples(_reach(samples)) == HOSTS
    assert hosts_in_samples(_reach(Calls(lambda m, x: np.random.rand()))) == {NUMPYS}
