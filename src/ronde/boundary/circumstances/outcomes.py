"""A call's result or its error, as one thing that may be kept, sent and given to the script later."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

__all__ = ["given", "outcome_of", "packed"]


def outcome_of(take: Callable[[], Any]) -> Any:
    """Whether something was taken, and that, or the error."""
    try:
        return True, take()
    except Exception as error:
        return False, error


def given(outcome: Any) -> Any:
    taken, value = outcome
    if taken:
        return value
    raise value


def packed(outcome: Any, pickler: Callable[[io.BytesIO], pickle.Pickler]) -> bytes | None:
    """None where it cannot be sent: then each rank has its own."""
    written = io.BytesIO()
    try:
        pickler(written).dump(outcome)
    except Exception:
        return None
    return written.getvalue()
