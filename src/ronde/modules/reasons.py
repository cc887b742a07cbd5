"""What the user is told of modules that run in parts: of each cause one sentence, and how often it was so."""

from __future__ import annotations

import re
from collections import Counter

import torch

from ronde.modules.calls import Calls

__all__ = ["InParts", "Told", "cause"]

_DIGITS = re.compile(r"\b\d+\b")
# Where in a tree of modules something is.
_PATH = re.compile(r"\b(\w+\.)+(?=\w)")


class Told:
    """Why modules of a class run in parts, as the user is told."""

    def __init__(self, name: str, reason: str) -> None:
        self._name, self._reason = name, reason
        self._because_of: list[str] = []
        self._seen = {name}
        self._often = ""

    @property
    def sentence(self) -> str:
        inside = f", because of {', '.join(self._because_of)} inside it" if self._because_of else ""
        return f"{self._name} runs in parts{self._often}, not as one piece{inside}: {self._reason}"

    def narrow(self, name: str, reason: str, around: list[str]) -> None:
        """The reason was found inside: in the module of this name, and not in those around that."""
        if name not in self._seen:
            self._seen.add(name)
            self._reason = reason
            self._because_of = [each for each in self._because_of if each not in around] + [name]

    def count(self, some: int, calls: int) -> None:
        """So many calls of modules of that name were in parts for this reason, of so many in all."""
        self._often = f" in {some} of {calls} calls" if 0 < some < calls else ""


class InParts:
    """Says of each cause once why modules run in parts; one per session."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._told: dict[tuple[str, str], Told] = {}
        self._times: Counter[tuple[str, str]] = Counter()

    def tell(self, module: torch.nn.Module, reason: str) -> None:
        """Each reason once, whatever numbers of rows or shapes are in it."""
        self._calls.explained = True
        name = type(module).__name__
        key = name, cause(reason)
        if key not in self._told:
            self._told[key] = Told(name, reason)
            self._calls.notes.say(self._told[key].sentence)

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

    def count(self, name: str, reason: str) -> None:
        """A module of this name runs in parts for that reason now."""
        self._times[name, cause(reason)] += 1

    def say_how_often(self) -> None:
        """At the end of a run: where some calls were as one piece, in how many it was otherwise."""
        named: Counter[str] = Counter(self._calls.tally.sharded)
        for (name, _), times in self._times.items():
            named[name] += times
        for (name, reason), told in self._told.items():
            before = told.sentence
            told.count(self._times[name, reason], named[name])
            self._calls.notes.say_instead(before, told.sentence)


def cause(reason: str) -> str:
    """The reason without what may differ: numbers from call to call, a path from module to module."""
    return _DIGITS.sub("", _PATH.sub("", reason))
