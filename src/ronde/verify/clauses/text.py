"""Compares texts in which numbers may differ by rounding."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping

from ronde.verify.clauses.verdict import Tolerance

__all__ = ["Unstable", "differing_number"]

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|\bnan\b|[-+]?\binf\b")

# The graph in a printed tensor, which has ronde's nodes in it, and the address of an object.
_BESIDE_THE_VALUE = re.compile(r",\s+grad_fn=<[^>]*>|(?<=<)\w+Backward\d*(?= object at)| at 0x[0-9a-f]+")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Unstable:
    """Differences between the first plain run and its repeats.

    Attributes:
        lines: numbers, from 0, of the lines whose words differ; None if the counts of lines differ.
        numbers: the largest differences where the words agree, by position (counted in numbers).
        left_out: positions of numbers that differ by more than rounding: clock times and the like.
    """

    lines: frozenset[int] | None = frozenset()
    numbers: Mapping[int, float] = dataclasses.field(default_factory=dict)
    left_out: frozenset[int] = frozenset()

    @classmethod
    def of(cls, reference: str, repeats: Iterable[str], tolerance: Tolerance) -> Unstable:
        """Compare the text of the first run with its repeats."""
        lines, repeats = reference.splitlines(keepends=True), list(repeats)
        others = [repeat.splitlines(keepends=True) for repeat in repeats]
        if any(len(other) != len(lines) for other in others):
            return cls(lines=None)
        odd = frozenset(
            place
            for place, line in enumerate(lines)
            if any(not _have_same_words(other[place], line) for other in others)
        )
        numbers: dict[int, float] = {}
        left_out: set[int] = set()
        for repeat in repeats:
            pairs = zip(_parts(_with_lines_of(reference, repeat, odd))[1], _parts(reference)[1], strict=True)
            for place, (mine, expected) in enumerate(pairs):
                if mine != expected:
                    apart = abs(float(mine) - float(expected))
                    if math.isfinite(apart):
                        numbers[place] = max(numbers.get(place, 0.0), apart)
                    if not _agree(mine, expected, tolerance):
                        left_out.add(place)
        return cls(lines=odd, numbers=numbers, left_out=frozenset(left_out))


_STABLE = Unstable()


def differing_number(
    text: str, reference: str, tolerance: Tolerance, unstable: Unstable = _STABLE
) -> str | None:
    """Describe the first difference beyond rounding of two texts; None if they agree.

    Integers must agree as whole numbers. Others must agree within the tolerance, thrice what runs of plain
    python differ there, or one unit of their last printed digit.
    """
    if unstable.lines is None:
        return None
    words, numbers = _parts(_with_lines_of(reference, text, unstable.lines))
    expected_words, expected_numbers = _parts(reference)
    for index, (mine, expected) in enumerate(zip(words, expected_words, strict=False)):
        if _single_spaced(mine) != _single_spaced(expected):
            line = _line(expected_words, index) + _common(mine, expected).count("\n")
            return f"line {line}: {_excerpt(mine)}, in plain python {_excerpt(expected)}"
        compared = index < min(len(numbers), len(expected_numbers)) and index not in unstable.left_out
        noise = unstable.numbers.get(index, 0.0)
        if compared and not _agree(numbers[index], expected_numbers[index], tolerance, noise):
            line = _line(expected_words, index + 1)
            return f"line {line}: {numbers[index]}, in plain python {expected_numbers[index]}"
    if len(words) != len(expected_words):
        shorter = min(len(words), len(expected_words))
        line = _line(expected_words, shorter)
        return f"line {line}: {len(text)} characters, in plain python {len(reference)}"
    return None


def _with_lines_of(reference: str, text: str, places: Collection[int]) -> str:
    """Replace the lines at `places` by the reference's lines."""
    if not places:
        return text
    lines = text.splitlines(keepends=True)
    for place, line in enumerate(reference.splitlines(keepends=True)[: len(lines)]):
        if place in places:
            lines[place] = line
    return "".join(lines)


def _have_same_words(first: str, second: str) -> bool:
    """Return whether two texts differ at most in numbers."""
    (words, _), (others, _) = _parts(first), _parts(second)
    return [_single_spaced(each) for each in words] == [_single_spaced(each) for each in others]


def _parts(text: str) -> tuple[list[str], list[str]]:
    """Split a text into words and the numbers between them."""
    compared = _BESIDE_THE_VALUE.sub("...", text)
    return _NUMBER.split(compared), _NUMBER.findall(compared)


def _agree(mine: str, reference: str, tolerance: Tolerance, noise: float = 0.0) -> bool:
    if mine == reference:
        return True
    if mine.lstrip("+-").isdigit() and reference.lstrip("+-").isdigit():
        return tolerance.close_whole(int(mine), int(reference), 0.0, noise)
    value, expected = float(mine), float(reference)
    unit = min(_last_digit(mine), _last_digit(reference)) * 1.001
    return abs(value - expected) <= unit or tolerance.close(value, expected, 0.0, noise)


def _last_digit(number: str) -> float:
    mantissa, _, exponent = number.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.0 if "n" in mantissa else 10.0 ** (int(exponent or 0) - decimals)


def _single_spaced(words: str) -> str:
    # A number of another width moves the spaces that line it up.
    return re.sub(" +", " ", words)


def _line(words: list[str], index: int) -> int:
    return "".join(words[:index]).count("\n") + 1


def _common(mine: str, expected: str) -> str:
    """Return the common prefix."""
    pairs = zip(mine, expected, strict=False)
    return "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _excerpt(words: str) -> str:
    return repr(words if len(words) <= 60 else words[:57] + "...")
