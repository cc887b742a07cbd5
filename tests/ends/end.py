"""How one script ends on ranks: what became of its modules, and what its user is told."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from codes import without_code

__all__ = ["COLUMNS", "End", "failed", "finished", "refused"]

COLUMNS = ("script", "end", "modules", "sentences")
_IN_PARTS = re.compile(r"^(\S+) runs in parts")
_WHOLE = re.compile(r"^(\S+) is computed whole where")
# What differs between runs and machines: paths, addresses, numbers by themselves (not those in a name).
_PATH = re.compile(r"(?<![\w/.])(?:/[\w.@+-]+){2,}/?")
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:x\d*)*(?![\w.]*[A-Za-z_])")
# Enough to tell sentences apart; what is behind is advice.
_LONGEST = 150


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """One line of the table.

    Attributes:
        script: list and name, `hazards/rows/mean of the rows`.
        end: "one piece", "parts" (some module was), "replicated" (nothing was cut), "refused", "wrong"
            (answers differ from plain torch's), or "failed".
        modules: each class of which calls were cut or were in parts, and which of these.
        sentences: notes or the refusal, without what differs between runs.
    """

    script: str
    end: str
    modules: str = ""
    sentences: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        return "\t".join((self.script, self.end, self.modules, " | ".join(self.sentences)))

    @classmethod
    def parse(cls, line: str) -> End:
        script, end, modules, sentences = line.split("\t")
        return cls(script, end, modules, tuple(each for each in sentences.split(" | ") if each))


def finished(script: str, cut: Mapping[str, int], notes: Iterable[str], *, right: bool = True) -> End:
    """Of a script that ran to its end.

    Args:
        cut: calls as one piece by class of module.
        notes: what its user is told.
        right: its answers are those of plain torch, as far as that was compared.
    """
    notes = list(notes)
    ends: dict[str, list[str]] = {name: ["one piece"] for name, calls in cut.items() if calls}
    for pattern, end in ((_IN_PARTS, "parts"), (_WHOLE, "whole")):
        for name in dict.fromkeys(found[1] for note in notes if (found := pattern.match(note))):
            ends.setdefault(name, []).append(end)
    if any("parts" in each for each in ends.values()):
        end = "parts"
    else:
        end = "one piece" if ends else "replicated"
    modules = ", ".join(f"{name}: {' and '.join(each)}" for name, each in sorted(ends.items()))
    return End(script, end if right else "wrong", modules, _stable(notes))


def refused(script: str, sentence: str) -> End:
    """Of a script that ronde ended with a sentence."""
    return End(script, "refused", "", _stable([sentence]))


def failed(script: str, error: str) -> End:
    """Of one that ended otherwise than in plain torch; `error` is what was written last."""
    return End(script, "failed", "", _stable([error]))


def _stable(sentences: Iterable[str]) -> tuple[str, ...]:
    """Sorted, each on one line and once, without codes, paths and numbers, and not longer than tells."""
    return tuple(sorted({_short(each) for each in sentences}))


def _short(sentence: str) -> str:
    text = " ".join(without_code(sentence).replace("|", "/").split())
    for pattern, name in ((_PATH, "PATH"), (_ADDRESS, "ADDRESS"), (_NUMBER, "N")):
        text = pattern.sub(name, text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3].rstrip() + "..."
