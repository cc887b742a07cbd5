"""Reversible replacement of attributes, for all patches of the boundary."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ronde.patching.stacks import Stack

__all__ = ["Patches"]

_ABSENT = object()
_Around = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclasses.dataclass(slots=True)
class _Chain:
    """The layers around one function, by name, and the current outermost function."""

    plain: Callable[..., Any]
    arounds: dict[str, _Around]
    outermost: Callable[..., Any]


class Patches:
    """A register of replaced attributes, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._before: dict[tuple[int, str], tuple[Any, object]] = {}
        self._chains: dict[Stack, _Chain] = {}

    def set(self, owner: Any, name: str, replacement: object) -> Any:
        """Replace `owner.name` and return the attribute that was there before.

        A class's own entry is remembered raw (a `staticmethod` is restored as one), and an inherited
        attribute is restored by deleting the replacement.
        """
        original = getattr(owner, name)
        before = vars(owner).get(name, _ABSENT)
        self._before.setdefault((id(owner), name), (owner, before))
        self.undo(functools.partial(_put_back, owner, name, before))
        setattr(owner, name, replacement)
        return original

    def layer(self, stack: Stack, name: str, around: _Around) -> None:
        """Add a layer to a function of torch, at its place in `stack`.

        Args:
            name: one of `stack.layers`.
            around: function that makes the layer around a function; called again when a layer joins.

        Raises:
            RuntimeError: the layer exists already, or the function was replaced by other means since.
        """
        chain = self._chains.get(stack)
        if chain is None:
            plain = getattr(stack.owner, stack.name)
            chain = self._chains[stack] = _Chain(plain, {}, plain)
            self.set(stack.owner, stack.name, plain)
        if name in chain.arounds or getattr(stack.owner, stack.name) is not chain.outermost:
            raise RuntimeError(f"the layer {name!r} cannot be put around {stack.name} now")
        chain.arounds[name] = around
        present = sorted(chain.arounds, key=stack.layers.index, reverse=True)
        chain.outermost = functools.reduce(lambda call, each: chain.arounds[each](call), present, chain.plain)
        setattr(stack.owner, stack.name, chain.outermost)

    def add(self, owner: Any, name: str, value: object) -> None:
        """Give `owner` an attribute that it does not have."""
        self.undo(functools.partial(_put_back, owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def undo(self, action: Callable[[], None]) -> None:
        """Register how to undo a replacement that is made by other means."""
        self._undo.append(action)

    @contextmanager
    def lifted(self, owners: Collection[Any]) -> Iterator[None]:
        """Restore these owners' original attributes inside the `with` block."""
        theirs = [
            (owner, name, before)
            for (_, name), (owner, before) in self._before.items()
            if any(owner is each for each in owners)
        ]
        # They may be lifted already, in a nested call.
        now = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name, _ in theirs]
        for owner, name, before in theirs:
            _put_back(owner, name, before)
        try:
            yield
        finally:
            for owner, name, replacement in now:
                _put_back(owner, name, replacement)

    def restore(self) -> None:
        """Restore everything, last replacement first; the register is empty afterwards."""
        while self._undo:
            self._undo.pop()()
        self._before.clear()
        self._chains.clear()


def _put_back(owner: Any, name: str, before: object) -> None:
    if before is _ABSENT:
        if name in vars(owner):
            delattr(owner, name)
    else:
        setattr(owner, name, before)
