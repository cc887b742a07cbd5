"""Detects at every batch whether Python's and numpy's global generators have moved.

Copying their states takes a tenth of a millisecond. Both are Mersenne twisters: every draw changes the
position, and the state's words when all have been used. While these few numbers are unchanged, the last copy
is valid.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy

from ronde.rng.random_state import have_moved

__all__ = ["HostGenerators"]

_WORDS = 624
_RANDOM: Any = numpy.random  # its stubs do not declare all of it


class HostGenerators:
    """Copies of both states, renewed only when the generators have moved."""

    def __init__(self) -> None:
        self._python: Any = None
        self._python_mark: Any = None
        self._python_words = _words_of_python()
        self._numbers: Any = None
        self._numbers_mark: Any = None
        # Views of the generator `_source`, which is kept alive.
        self._source: Any = None
        self._numbers_words: Any = None

    def state(self) -> tuple[Any, Any]:
        """Return the states of both, for comparison by `moved`."""
        return self._of_python(), self._of_numpy()

    def _of_python(self) -> Any:
        words = self._python_words
        mark = None if words is None else (words[0], words[1], words[2])
        # numpy may return the second number of an earlier pair without a draw.
        if mark is None or mark != self._python_mark or self._python[2] is not None:
            self._python, self._python_mark = random.getstate(), mark
        return self._python

    def _of_numpy(self) -> Any:
        words = self._words_of_numpy()
        mark = None if words is None else (words[_WORDS], words[0], words[1])
        if mark is None or mark != self._numbers_mark or self._numbers["has_gauss"]:
            self._numbers, self._numbers_mark = numpy.random.get_state(legacy=False), mark
        return self._numbers

    def _words_of_numpy(self) -> Any:
        """Return a view of words and position in the generator's memory.

        Another kind of generator has None.
        """
        source = _RANDOM.get_bit_generator()
        if source is not self._source:
            self._source, self._numbers_mark = source, None
            known = type(source) is numpy.random.MT19937
            address = source.ctypes.state_address if known else None
            self._numbers_words = address and (ctypes.c_uint32 * (_WORDS + 1)).from_address(address)
        return self._numbers_words

    @staticmethod
    def moved(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool:
        """Return whether a generator has moved between two states."""
        return not (a[0] is b[0] and a[1] is b[1]) and have_moved(a, b)


def _words_of_python() -> Any:
    """Return a view of the generator's position and first words, or None.

    This interpreter may keep them elsewhere, which gives None.
    """
    generator = random.getstate.__self__  # pyright: ignore[reportFunctionMemberAccess]
    begin = object.__basicsize__
    if type(generator).__basicsize__ < begin + 4 * (_WORDS + 1):
        return None
    words = (ctypes.c_uint32 * 3).from_address(id(generator) + begin)
    state = random.getstate()[1]
    return words if tuple(words) == (state[-1], state[0], state[1]) else None
