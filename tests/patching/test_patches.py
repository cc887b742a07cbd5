"""Replacing attributes, and getting them back."""

from __future__ import annotations

import types

from ronde.patching.patches import Patches


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
