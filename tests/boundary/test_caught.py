"""What code that is under way would do about an interrupt, by what surrounds the line that it is at."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

import pytest

from ronde.boundary.caught import is_caught

needs_table = pytest.mark.skipif(sys.version_info < (3, 11), reason="no table of what is handled where")


def asked(text: str) -> bool:
    """What is found on the line of this code that calls `here`."""
    found: list[bool] = []

    def here() -> None:
        found.append(is_caught(sys._getframe(1), is_scripts=lambda frame: "<script>" in str(frame.f_code)))

    names: dict[str, Any] = {"here": here, "nothing": nothing}
    exec(compile(textwrap.dedent(text), "<script>", "exec"), names)
    return found == [True]


class nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    "text",
    [
        """
        try:
            here()
        finally:
            nothing()
        """,
        """
        try:
            here()
        except:
            pass
        """,
        """
        def train():
            for _ in range(1):
                with nothing(), nothing():
                    try:
                        here()
                    except (ValueError, OSError) as error:
                        print(error)
        try:
            train()
        finally:
            nothing.done = True
        """,
        """
        try:
            with nothing():
                try:
                    [here() for _ in range(1)]
                except ValueError:
                    pass
                except KeyError:
                    pass
        finally:
            nothing()
        """,
        """
        try:
            here()
        except ValueError as error:
            print(error)
        except sys.error:
            pass
        except:
            nothing()
        """,
    ],
)
@needs_table
def test_a_finally_or_a_bare_except_around_it(text: str) -> None:
    assert asked(text)


@pytest.mark.parametrize(
    "text",
    [
        """
        try:
            here()
        except KeyboardInterrupt:
            pass
        """,
        """
        def train():
            here()
        try:
            train()
        except BaseException:
            raise
        """,
    ],
)
def test_a_name_of_what_is_raised(text: str) -> None:
    assert asked(text)


@pytest.mark.parametrize(
    "text",
    [
        "here()",
        """
        with nothing() as it, nothing():
            here()
        """,
        """
        try:
            with nothing():
                here()
        except ValueError as error:
            print(error)
        except (OSError, nothing.error):
            pass
        """,
        """
        try:
            nothing()
        finally:
            nothing()
        here()
        """,
        """
        try:
            nothing()
        finally:
            here()
        """,
        """
        try:
            raise ValueError
        except ValueError as error:
            here()
        """,
        """
        def each():
            yield here()
        sum(0 for _ in each())
        """,
    ],
)
def test_nothing_around_it_that_keeps_anything(text: str) -> None:
    assert not asked(text)


def test_only_frames_of_the_script_are_asked() -> None:
    try:
        assert not is_caught(sys._getframe(), is_scripts=lambda frame: False)
    except KeyboardInterrupt:
        raise
