"""Which lines of a source catch what a computation raises."""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import _pytest
import execnet
import pluggy
import pytest
import torch
import xdist

from ronde.trace.catching_source import CatchVisitor
from ronde.trace.try_statements import TryStatements

# What runs these tests catches what they raise.
_FOLDERS = [os.path.dirname(str(each.__file__)) for each in (_pytest, pluggy, xdist, execnet)]


@pytest.mark.parametrize(
    ("handler", "caught"),
    [
        ("except IndexError:\n    pass", True),
        ("except:\n    pass", True),
        ("except RuntimeError as error:\n    if rare:\n        skip()\n    else:\n        raise", True),
        ("except (KeyboardInterrupt, RuntimeError):\n    pass", True),
        ("except KeyboardInterrupt:\n    pass", False),
        ("except (KeyboardInterrupt, SystemExit):\n    pass", False),
        ("except queue.Empty:\n    pass", True),
        ("except Exception:\n    clean_up()\n    raise", False),
        ("except Exception as error:\n    raise ValueError from error", False),
        ("except Exception:\n    if rare:\n        return\n    raise", True),
        ("finally:\n    clean_up()", False),
        ("finally:\n    return", True),
        ("except KeyboardInterrupt:\n    pass\nexcept ValueError:\n    pass", True),
    ],
)
def test_handlers(handler: str, caught: bool) -> None:
    source = f"def train():\n    try:\n        step()\n        step()\n{textwrap.indent(handler, '    ')}\n"
    assert CatchVisitor(source).caught == ({("train", 1): [range(3, 5)]} if caught else {})


@pytest.mark.parametrize(
    ("item", "caught"),
    [
        ("contextlib.suppress(IndexError)", True),
        ("suppress(KeyboardInterrupt)", False),
        ("torch.no_grad()", False),
        ("open(path) as file, pytest.raises(ValueError)", True),
        ("lock", False),
    ],
)
def test_with_statements(item: str, caught: bool) -> None:
    source = f"with {item}:\n    step()\n"
    assert CatchVisitor(source).caught == ({("<module>", 0): [range(2, 3)]} if caught else {})


def test_a_function_that_is_made_in_a_try_is_not_called_there() -> None:
    source = "try:\n    import fast\n    def step():\n        fast()\nexcept Exception:\n    pass\n"
    assert CatchVisitor(source).caught == {("<module>", 0): [range(2, 5)]}


def test_handlers_and_what_follows_are_outside() -> None:
    source = (
        "try:\n    step()\nexcept ValueError:\n    step()\nelse:\n    step()\nfinally:\n    step()\nstep()\n"
    )
    assert CatchVisitor(source).caught == {("<module>", 0): [range(2, 3)]}


def test_a_decorated_function_begins_with_its_decorator() -> None:
    source = "@wraps\n@other\ndef step():\n    try:\n        run()\n    except ValueError:\n        pass\n"
    assert list(CatchVisitor(source).caught) == [("step", 1)]


def _here(tries: TryStatements) -> bool:
    return tries.catch(sys._getframe(1))


def _plain(tries: TryStatements) -> bool:
    return _here(tries)


def _around(tries: TryStatements, work: Any) -> bool:
    try:
        return work(tries)
    except ValueError:
        return False


def test_frames_of_the_script_are_asked() -> None:
    tries = TryStatements(*_FOLDERS)
    assert not _plain(tries)
    assert _around(tries, _plain)
    with suppress(ValueError):
        assert _plain(tries)
        assert [_plain(tries) for _ in range(2)] == [True, True]
    assert not _plain(tries)


def test_code_without_a_source_may_catch() -> None:
    tries = TryStatements(*_FOLDERS)
    names: dict[str, Any] = {"plain": _plain, "tries": tries}
    exec("try:\n    found = plain(tries)\nexcept ValueError:\n    pass\n", names)
    assert names["found"]


@contextmanager
def _skips() -> Iterator[None]:
    try:
        yield
    except IndexError as error:
        print(error)


@contextmanager
def _skips_by_another() -> Iterator[None]:
    with _skips():
        yield


@contextmanager
def _cleans_up() -> Iterator[None]:
    try:
        int("1")
    except ValueError as error:
        print(error)
    try:
        yield
    finally:
        int("2")


class _Manager:
    def __enter__(self) -> None:
        pass


class _Swallows(_Manager):
    def __exit__(self, *raised: Any) -> bool:
        return raised[0] is IndexError

    @contextmanager
    def skips(self) -> Iterator[None]:
        with suppress(IndexError):
            yield

    @contextmanager
    def times(self) -> Iterator[None]:
        yield


class _Passes(_Manager):
    def __exit__(self, *raised: Any) -> None:
        if raised[0] is None:
            return None
        return


_SWALLOWING, _PASSING = _Swallows(), _Passes()


def _made(rare: bool = False) -> Any:
    return nullcontext() if rare else suppress(IndexError)


def _made_plain() -> Any:
    return torch.autocast("cpu")


def _in_script_managers(tries: TryStatements) -> Iterator[bool]:
    for_one = _Swallows()
    with _skips():
        yield _here(tries)
    with _skips_by_another():
        yield _here(tries)
    with _Swallows():
        yield _here(tries)
    with _SWALLOWING:
        yield _here(tries)
    with _SWALLOWING.skips():
        yield _here(tries)
    with for_one.skips():
        yield _here(tries)
    with nullcontext() if tries is None else _skips():
        yield _here(tries)
    with _made():
        yield _here(tries)


def _in_passing_managers(tries: TryStatements) -> Iterator[bool]:
    for_one = _Swallows()
    with _cleans_up():
        yield _here(tries)
    with _Passes():
        yield _here(tries)
    with _PASSING:
        yield _here(tries)
    with for_one.times():
        yield _here(tries)
    with torch.no_grad(), torch.autocast("cpu"), open(os.devnull), threading.Lock():
        yield _here(tries)
    with tempfile.TemporaryDirectory(), _made_plain():
        yield _here(tries)


def test_managers_of_the_script_count_unless_they_plainly_pass_exceptions_on() -> None:
    tries = TryStatements(*_FOLDERS, *torch.__path__)
    assert list(_in_script_managers(tries)) == [True] * 8
    assert list(_in_passing_managers(tries)) == [False] * 6
