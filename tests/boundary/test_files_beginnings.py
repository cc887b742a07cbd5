"""What was there before threads wrote is known to other ranks, however the threads' turns fall."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ronde.boundary.files.beginnings import Beginnings


class Words:
    """Word that is left, among ranks in one process; `before_told` is the other rank's turn."""

    def __init__(self) -> None:
        self.words: dict[str, str] = {}
        self.before_told: Callable[[], None] | None = None
        self.after_told: Callable[[], None] | None = None

    def tell(self, key: str, text: str) -> None:
        self.words[key] = text

    def told(self, key: str) -> str | None:
        self._turn("before_told")
        word = self.words.get(key)
        self._turn("after_told")
        return word

    def _turn(self, name: str) -> None:
        turn = getattr(self, name)
        setattr(self, name, None)
        if turn is not None:
            turn()


def beginnings(words: Words) -> Beginnings:
    return Beginnings(words, lambda name: name)  # pyright: ignore[reportArgumentType] - no collectives here


@pytest.mark.parametrize("moment", ["before_told", "after_told"])
def test_a_folder_made_while_one_asks_was_not_there(tmp_path: Path, moment: str) -> None:
    words = Words()
    main, other = beginnings(words), beginnings(words)
    folder = str(tmp_path / "a" / "b")

    def make() -> None:
        main.save(folder, content=False, parents=True)
        os.makedirs(folder)

    setattr(words, moment, make)
    assert not other.was_there(folder)
    assert os.path.isdir(folder)
    assert not other.was_there(folder)
    assert not other.was_there(str(tmp_path / "a"))
    assert other.made_inside(str(tmp_path), ["a"]) == {"a"}


def test_a_folder_that_is_missing_is_not_made_by_who_fails_for_it(tmp_path: Path) -> None:
    words = Words()
    main, other = beginnings(words), beginnings(words)
    main.save(str(tmp_path / "missing" / "file"))
    (tmp_path / "missing").mkdir()  # later, by all ranks together
    assert other.made_inside(str(tmp_path), ["missing"]) == set()
