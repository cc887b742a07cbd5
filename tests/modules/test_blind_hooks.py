"""Which hooks before a forward cannot look at what a module is given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn
from torch.nn.utils import weight_norm

from ronde.modules.blind_hooks import is_blind

NET = nn.Linear(2, 2)
SEEN: list[Any] = []


class Kept:
    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def __call__(self, module: Any, given: Any) -> None:
        module.weight = self.kept

    def whole(self, *given: Any) -> None:
        SEEN.append(given)


def _scale(module: Any, given: Any, by: float = 2.0) -> None:
    module.weight = module.raw * by


def _closed(kept: Any) -> Callable[..., None]:
    def hook(module: Any, _: Any) -> None:
        module.weight = kept

    return hook


def _inner(module: Any, given: Any) -> None:
    module.later = lambda: given


def _sometimes(module: Any, given: Any) -> None:
    if module.steps > 100:
        SEEN.append(given)


def _spies(module: Any, given: Any) -> None:
    SEEN.append(locals())


def _of_another(module: Any, given: Any) -> None:
    NET.weight = module.weight


def _any(module: Any, *others: Any) -> None:
    module.weight = 1


def _all(*given: Any) -> None:
    given[0].weight = 1


def _named(module: Any, given: Any, names: Any) -> None:
    SEEN.append(names)


CASES: dict[str, tuple[Any, bool]] = {
    "function": (_scale, True),
    "object": (Kept(2.0), True),
    "closure": (_closed("weight"), True),
    "others": (_any, True),
    "a lambda": (lambda module, given: setattr(module, "n", 1), True),
    "keeps what is no plain value": (Kept([1]), False),
    "keeps a module": (_closed(NET), False),
    "names a module": (_of_another, False),
    "hands it on": (_inner, False),
    "looks at times": (_sometimes, False),
    "looks at everything": (_spies, False),
    "all in one": (_all, False),
    "a method": (Kept(1).whole, False),
    "partial": (functools.partial(_scale, by=3.0), False),
    "a module": (NET, False),
    "a builtin": (print, False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_hook_is_blind_that_cannot_name_its_arguments(name: str) -> None:
    hook, blind = CASES[name]
    assert is_blind(hook, kwargs=False) is blind


def test_arguments_by_name_are_looked_at_too() -> None:
    assert is_blind(_named, kwargs=False)
    assert not is_blind(_named, kwargs=True)


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_torchs_own_are_none_of_the_users() -> None:
    layer = weight_norm(nn.Linear(2, 2))
    layer.register_forward_pre_hook(_scale)
    layer.register_forward_pre_hook(_sometimes)
    blind = [is_blind(hook, kwargs=False) for hook in layer._forward_pre_hooks.values()]
    assert blind == [False, True, False]
