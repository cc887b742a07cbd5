"""What the user is told of modules that run in parts: of each cause one sentence, and how often it was so."""

from __future__ import annotations

import re
import weakref
from collections import Counter

import torch

from ronde.modules.calls import Calls

__all__ = ["InParts", "Told", "cause"]

_DIGITS = re.compile(r"\b\d+\b")
# Where in a tree of modules something is.
_PATH = re.compile(r"\b(\w+\.)+(?=\w)")


class Told:
    """Why modules of a class run in parts, as the user is told.

    Attributes:
        times: in how many calls it was found, of whichever modules of that name.
        modules: those of which it was found.
        inside: classes of modules that have such a one inside and run as one piece.
    """

    __slots__ = ("_because_of", "_name", "_reason", "_seen", "_share", "inside", "modules", "times")

    def __init__(self, name: str, reason: str) -> None:
        self.times = 0
        self.modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.inside: dict[str, None] = {}
        self._name, self._reason = name, reason
        self._because_of: list[str] = []
        self._seen = {name}
        # Calls in parts for this reason, and all that were made of modules of that name by themselves.
        self._share: tuple[int, int] | None = None

    @property
    def sentence(self) -> str:
        name, reason, parts = self._name, self._reason, ", ".join(self._because_of)
        if self._share is None:
            if not parts:
                return f"{name} runs in parts, not as one piece: {reason}"
            return f"{name} runs in parts, not as one piece, because of {parts} inside it: {reason}"
        some, calls = self._share
        if some == calls:
            outer = ", ".join(sorted(self.inside)[:3])
            return f"{name} runs in parts when called by itself ({some}x), not inside {outer}: {reason}"
        if not parts:
            return f"{name} runs in parts in {some} of {calls} calls, not as one piece: {reason}"
        return (
            f"{name} runs in parts in {some} of {calls} calls, not as one piece, because of {parts} inside "
            f"it: {reason}"
        )

    def narrow(self, name: str, reason: str, around: list[str]) -> None:
        """The reason was found inside: in the module of this name, and not in those around that."""
        if name not in self._seen:
            self._seen.add(name)
            self._reason = reason
            self._because_of = [each for each in self._because_of if each not in around] + [name]

    def count(self, some: int, calls: int) -> None:
        """So many calls of modules of that name were in parts for this reason, of so many in all.

        Where all were there is nothing to add, unless they run as one piece inside others.
        """
        inside = bool(self.inside) and not self._because_of
        self._share = (some, calls) if 0 < some < calls or (some and inside) else None


class InParts:
    """Says of each cause once why modules run in parts; one per session."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._told: dict[tuple[str, str], Told] = {}
        self._times: Counter[tuple[str, str]] = Counter()
        self._whole: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def tell(self, module: torch.nn.Module, reason: str) -> Told:
        """Each reason once, whatever numbers of rows or shapes are in it."""
        self._calls.explained = True
        name = type(module).__name__
        key = name, cause(reason)
        if key not in self._told:
            self._told[key] = Told(name, reason)
            self._calls.notes.say(self._told[key].sentence)
        told = self._told[key]
        told.times += 1
        told.modules.add(module)
        for outer in self._whole:
            if outer is not module and any(each is module for each in outer.modules()):
                told.inside.setdefault(type(outer).__name__)
        return told

    def is_told(self, name: str) -> bool:
        return any(told == name for told, _ in self._told)

    def find(self, names: list[str], reason: str) -> Told | None:
        """What has been said for that reason of the first of these names of which it has."""
        return next((told for name in names if (told := self._told.get((name, cause(reason))))), None)

    def narrow(self, told: Told, name: str, reason: str, around: list[str]) -> None:
        """The reason was found inside, in the module of this name, as that one has it."""
        before = told.sentence
        told.narrow(name, reason, around)
        self._calls.notes.say_instead(before, told.sentence)

    def take_back(self, told: Told) -> None:
        """It was found once for nothing, as more is known now."""
        told.times -= 1
        if not told.times:
            self._told = {key: each for key, each in self._told.items() if each is not told}
            self._calls.notes.take_back(told.sentence)

    def count(self, name: str, reason: str) -> None:
        """A module of this name runs in parts for that reason now."""
        self._times[name, reason] += 1

    def ran_as_one_piece(self, module: torch.nn.Module) -> None:
        """What is said of a module inside this one is not so of this."""
        self._whole.add(module)
        if not self._told:
            return
        parts = set(module.modules()) - {module}
        for told in self._told.values():
            if any(each in parts for each in told.modules):
                told.inside.setdefault(type(module).__name__)

    def say_how_often(self) -> None:
        """At the end of a run: where some calls were as one piece, in how many it was otherwise."""
        calls: Counter[tuple[str, str]] = Counter()
        named: Counter[str] = Counter(self._calls.tally.sharded)
        for (name, reason), times in self._times.items():
            calls[name, cause(reason)] += times
            named[name] += times
        for (name, reason), told in self._told.items():
            before = told.sentence
            told.count(calls[name, reason], named[name])
            self._calls.notes.say_instead(before, told.sentence)


def cause(reason: str) -> str:
    """The reason without what may differ: numbers from call to call, a path from module to module."""
    return _DIGITS.sub("", _PATH.sub("", reason))
