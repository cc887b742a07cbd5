"""A replaced step is wrapped by torch once, whenever the script looks at the class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ronde.patching.patches import Patches
from ronde.shards.hooked_step import replace_step


@pytest.fixture
def patches() -> Iterator[Patches]:
    patches = Patches()
    yield patches
    patches.restore()


@pytest.fixture
def kind() -> Any:
    """A class of optimizer of which none has been made."""

    class Plain(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__([torch.zeros(1, requires_grad=True)], {})

        def step(self, closure: Any = None) -> Any:
            return "stepped"

    return Plain


def around(step: Callable[..., Any]) -> Callable[..., Any]:
    return lambda optimizer: f"around {step(optimizer)}"


def step(optimizer: Any) -> tuple[Any, int]:
    """What a step returns, and how often its hook is called."""
    called: list[None] = []
    handle = optimizer.register_step_post_hook(lambda *_: called.append(None))
    result = optimizer.step()
    handle.remove()
    return result, len(called)


def test_hooks_of_a_replaced_step_are_called_once(kind: Any, patches: Patches) -> None:
    replace_step(patches, kind, around)
    replace_step(patches, kind, around)
    assert step(kind()) == ("around around stepped", 1)


def test_a_step_that_was_in_use_before_is_replaced_too(kind: Any, patches: Patches) -> None:
    optimizer = kind()
    replace_step(patches, kind, around)
    assert step(optimizer) == ("around stepped", 1)
    patches.restore()
    assert step(optimizer) == ("stepped", 1)


def test_a_script_that_replaces_the_step_itself_has_its_hooks_called_once(
    kind: Any, patches: Patches
) -> None:
    replace_step(patches, kind, around)
    found = kind.step
    kind.step = lambda optimizer: f"script's {found(optimizer)}"
    assert step(kind()) == ("script's around stepped", 1)


def test_optimizers_that_were_made_meanwhile_keep_their_hooks(kind: Any, patches: Patches) -> None:
    replace_step(patches, kind, around)
    optimizer = kind()
    patches.restore()
    assert step(optimizer) == ("stepped", 1)


def test_an_inherited_step_is_left_to_the_class_that_has_it(kind: Any, patches: Patches) -> None:
    class Inherits(kind):
        pass

    replace_step(patches, Inherits, around)
    assert "step" not in vars(Inherits)
