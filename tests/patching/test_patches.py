"""Replacing attributes, and getting them back."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

from ronde.patching.patches import Patches
from ronde.patching.stacks import Stack


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    @staticmethod
    def plain() -> str:
        return "static"


def test_restores_in_reverse_order() -> None:
    module = types.ModuleType("module")
    module.value = 1  # pyright: ignore[reportAttributeAccessIssue]
    patches = Patches()
    assert patches.set(module, "value", 2) == 1
    assert patches.set(module, "value", 3) == 2
    patches.restore()
    assert module.value == 1
    patches.set(module, "value", 4)
    patches.restore()
    assert module.value == 1


def test_keeps_descriptors_and_inheritance() -> None:
    patches = Patches()
    original = patches.set(Owner, "plain", staticmethod(lambda: "patched"))
    patches.set(Owner, "inherited", lambda self: "patched")
    assert (original(), Owner().plain(), Owner().inherited()) == ("static", "patched", "patched")
    patches.restore()
    assert (Owner().plain(), Owner().inherited()) == ("static", "base")
    assert "inherited" not in vars(Owner)
    assert isinstance(vars(Owner)["plain"], staticmethod)


def test_lifts_what_it_has_replaced_for_a_while() -> None:
    module, other, patches = types.ModuleType("module"), types.ModuleType("other"), Patches()
    for each in (module, other):
        each.value = 1  # pyright: ignore[reportAttributeAccessIssue]
        patches.set(each, "value", 2)
        patches.set(each, "value", 3)
    with patches.lifted([module]):
        assert (module.value, other.value) == (1, 3)
    assert (module.value, other.value) == (3, 3)
    patches.restore()
    with patches.lifted([module]):
        assert (module.value, other.value) == (1, 1)


def layered(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    return lambda plain: lambda: f"{name}({plain()})"


def test_layers_stand_in_the_declared_order_whoever_comes_first() -> None:
    module = types.ModuleType("module")
    module.value = lambda: "plain"  # pyright: ignore[reportAttributeAccessIssue]
    plain = module.value
    stack = Stack(module, "value", ("outer", "middle", "inner"))
    patches = Patches()
    for name in ("middle", "inner", "outer"):
        patches.layer(stack, name, layered(name))
    assert module.value() == "outer(middle(inner(plain)))"
    patches.restore()
    assert module.value is plain
    patches.layer(stack, "inner", layered("again"))
    assert module.value() == "again(plain)"


def test_a_layer_is_put_once_and_not_over_a_replacement_by_other_means() -> None:
    module = types.ModuleType("module")
    module.value = lambda: "plain"  # pyright: ignore[reportAttributeAccessIssue]
    stack = Stack(module, "value", ("outer", "inner"))
    patches = Patches()
    patches.layer(stack, "inner", layered("inner"))
    with pytest.raises(RuntimeError, match="'inner'"):
        patches.layer(stack, "inner", layered("inner"))
    module.value = plain = lambda: "theirs"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RuntimeError, match="'outer'"):
        patches.layer(stack, "outer", layered("outer"))
    assert module.value is plain
