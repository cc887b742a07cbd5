"""Errors that name files as the script does, wherever these lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["called"]


@contextmanager
def called(names: dict[str, Any]) -> Iterator[None]:
    """Inside, an error of the system gets the script's name for a place.

    Args:
        names: by place.
    """
    try:
        yield
    except OSError as error:
        if error.filename in names:
            error.filename = names[error.filename]
        if error.filename2 in names:
            error.filename2 = names[error.filename2]
        raise
