"""Compares texts in which numbers may differ by rounding."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection

from ronde.verify.clauses.verdict import Tolerance

__all__ = ["alike", "differing_number", "unstable_numbers"]

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|\bnan\b|[-+]?\binf\b")

# What a printed tensor says of its graph, in which ronde's nodes stand; where an object lies in memory.
_BESIDE_THE_VALUE = re.compile(r",\s+grad_fn=<[^>]*>|(?<=<)\w+Backward\d*(?= object at)| at 0x[0-9a-f]+")


def differing_number(
    text: str, reference: str, tolerance: Tolerance, without: Collection[int] = ()
) -> str | None:
    """The first place where two texts differ by more than rounding, in words; None if there is none.

    Integers must agree as whole numbers. Others must agree within the tolerance or within one unit of their
    last printed digit. `without` are the positions (counted in numbers) of numbers to pass over.
    """
    words, numbers = _parts(text)
    expected_words, expected_numbers = _parts(reference)
    for index, (mine, expected) in enumerate(zip(words, expected_words, strict=False)):
        if _single_spaced(mine) != _single_spaced(expected):
            line = _line(expected_words, index) + _common(mine, expected).count("\n")
            return f"line {line}: {_excerpt(mine)}, in plain python {_excerpt(expected)}"
        compared = index < min(len(numbers), len(expected_numbers)) and index not in without
        if compared and not _agree(numbers[index], expected_numbers[index], tolerance):
            line = _line(expected_words, index + 1)
            return f"line {line}: {numbers[index]}, in plain python {expected_numbers[index]}"
    if len(words) != len(expected_words):
        shorter = min(len(words), len(expected_words))
        line = _line(expected_words, shorter)
        return f"line {line}: {len(text)} characters, in plain python {len(reference)}"
    return None


def unstable_numbers(first: str, second: str, tolerance: Tolerance) -> set[int]:
    """Positions of numbers that differ between two runs of plain python: clock times and the like."""
    words, numbers = _parts(first)
    other_words, other_numbers = _parts(second)
    if len(words) != len(other_words):
        return set()
    pairs = zip(numbers, other_numbers, strict=True)
    return {index for index, (mine, other) in enumerate(pairs) if not _agree(mine, other, tolerance)}


def alike(first: str, second: str) -> bool:
    """Whether two texts differ in numbers only, so that these can be told apart one by one."""
    (words, _), (others, _) = _parts(first), _parts(second)
    return [_single_spaced(each) for each in words] == [_single_spaced(each) for each in others]


def _parts(text: str) -> tuple[list[str], list[str]]:
    """The words and the numbers between them."""
    compared = _BESIDE_THE_VALUE.sub("...", text)
    return _NUMBER.split(compared), _NUMBER.findall(compared)


def _agree(mine: str, reference: str, tolerance: Tolerance) -> bool:
    if mine == reference:
        return True
    if mine.lstrip("+-").isdigit() and reference.lstrip("+-").isdigit():
        return tolerance.close_whole(int(mine), int(reference), 0.0)
    value, expected = float(mine), float(reference)
    unit = min(_last_digit(mine), _last_digit(reference)) * 1.001
    return abs(value - expected) <= unit or tolerance.close(value, expected, 0.0)


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
    """What both begin with."""
    pairs = zip(mine, expected, strict=False)
    return "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _excerpt(words: str) -> str:
    return repr(words if len(words) <= 60 else words[:57] + "...")
