"""What was there before threads wrote is known to other ranks, however the threads' turns fall."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ronde.boundary.files.aside import Aside
from ronde.boundary.files.beginnings import Beginnings
from ronde.boundary.files.links import resolved
from ronde.boundary.files.steady_file import open_steadily


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


@pytest.fixture
def ranks(tmp_path: Path) -> tuple[Words, Beginnings, Beginnings]:
    """The word between them, the main one, and another."""
    words, numbers = Words(), itertools.count()
    kept = tmp_path / "kept"
    kept.mkdir()

    def beginnings() -> Beginnings:
        meeting: Any = words  # no collectives here
        return Beginnings(meeting, lambda name: str(kept / f"{next(numbers)}-{name}"))

    return words, beginnings(), beginnings()


@pytest.mark.parametrize("moment", ["before_told", "after_told"])
def test_a_folder_made_while_one_asks_was_not_there(
    tmp_path: Path, moment: str, ranks: tuple[Words, Beginnings, Beginnings]
) -> None:
    words, main, other = ranks
    aside = Aside(lambda: str(tmp_path / "aside"), other)
    folder = str(tmp_path / "a" / "b")

    def make() -> None:
        main.makes_folder(folder)
        os.makedirs(folder)

    setattr(words, moment, make)
    assert not aside.is_there(folder)
    assert os.path.isdir(folder)
    assert not aside.is_there(folder)
    assert not aside.is_folder(str(tmp_path / "a"))
    assert aside.listed(str(tmp_path)) == ["kept"]


def test_a_folder_that_is_missing_is_not_made_by_who_fails_for_it(
    tmp_path: Path, ranks: tuple[Words, Beginnings, Beginnings]
) -> None:
    _, main, other = ranks
    main.makes(str(tmp_path / "missing" / "file"))
    (tmp_path / "missing").mkdir()  # later, by all ranks together
    other.read()
    assert other.was(str(tmp_path / "missing")) == str(tmp_path / "missing")


@pytest.mark.parametrize("change", ["written", "removed", "moved", "folder removed", "folder moved"])
@pytest.mark.parametrize("moment", ["before_told", "after_told"])
def test_what_a_file_held_is_read_while_it_changes(
    tmp_path: Path, change: str, moment: str, ranks: tuple[Words, Beginnings, Beginnings]
) -> None:
    """The main rank's thread comes before the other's has asked, or between its reading and its asking."""
    words, main, other = ranks
    aside = Aside(lambda: str(tmp_path / "aside"), other)
    folder = tmp_path / "folder"
    file, path = folder / "file", str(folder / "file")
    folder.mkdir()
    file.write_text("begun")

    def make() -> None:
        if change == "written":
            main.makes(path)
            file.write_text("changed")
        elif change.startswith("folder"):
            main.takes(str(folder), moves=change == "folder moved")
            os.rename(folder, tmp_path / "other")
            if change == "folder moved":
                (tmp_path / "other" / "file").write_text("changed")
            else:
                shutil.rmtree(tmp_path / "other")
        else:
            main.takes(path, moves=change == "moved")
            os.rename(file, folder / "other") if change == "moved" else file.unlink()

    def read(place: str | None) -> str:
        assert place is not None
        return Path(place).read_text()

    setattr(words, moment, make)
    assert aside.asked(path, read) == "begun"
    assert aside.asked(path, read) == "begun"
    assert aside.is_folder(str(folder))


@pytest.mark.parametrize("mode", ["r", "rb"])
def test_a_file_that_is_open_goes_on_as_it_was(
    tmp_path: Path, mode: str, ranks: tuple[Words, Beginnings, Beginnings]
) -> None:
    words, main, other = ranks
    path = tmp_path / "file"
    path.write_text("first\nsecond\nthird\n")

    def kept() -> str | None:
        other.read()
        found = other.was(str(path))
        return None if found == str(path) else found

    def change() -> None:
        main.makes(str(path))
        path.write_text("changed")

    for moment in ("before_told", "after_told"):
        path.write_text("first\nsecond\nthird\n")
        for rank in (main, other):
            rank.renew(str(path), main.position)
        encoding = None if "b" in mode else "utf-8"
        with open_steadily(str(path), mode, 8, encoding, None, None, opener=None, kept=kept) as file:
            first = file.read(6)
            setattr(words, moment, change)
            text = first + file.readline() + file.read()
        assert (text if isinstance(text, str) else text.decode()) == "first\nsecond\nthird\n"
    raw = open_steadily(str(path), "rb", 0, None, None, None, opener=None, kept=kept)
    with raw:
        assert raw.read() == b"first\nsecond\nthird\n"


def test_what_ranks_do_together_is_seen_after_what_threads_did(
    tmp_path: Path, ranks: tuple[Words, Beginnings, Beginnings]
) -> None:
    _, main, other = ranks
    folder, file = tmp_path / "folder", tmp_path / "folder" / "file"
    main.makes(str(folder), whole=True)
    folder.mkdir()
    other.read()
    assert other.was(str(file)) is None
    for rank in (main, other):  # the main thread writes it
        rank.renew(str(file), main.position)
    file.write_text("1")
    assert other.was(str(file)) == str(file)
    assert other.was(str(folder)) == str(folder)
    main.makes(str(file))
    file.write_text("2")
    other.read()
    assert Path(str(other.was(str(file)))).read_text() == "1"


def test_links_lead_on_from_where_they_lie() -> None:
    texts = {"/a/link": "b/c", "/a/b/c": "../d", "/root": "/a", "/loop": "loop"}
    assert resolved("/root/link", texts.get, last=True) == "/a/d"
    assert resolved("/root/link", texts.get, last=False) == "/a/link"
    assert resolved("/loop/file", texts.get, last=True) == "/loop/file"
