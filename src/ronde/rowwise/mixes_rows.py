"""What ends an observed call of a module that must not be cut."""

from __future__ import annotations

__all__ = ["BACKWARD", "COUNTS", "HOST_READ", "MIXES", "NO_AXIS", "MixesRows", "meet"]

MIXES = "rows of its output depend on other rows, or on their number"
COUNTS = "what it does depends on how many rows there are"
HOST_READ = "its forward reads a value of the batch on the host"
BACKWARD = "its forward runs backward"
NO_AXIS = "its output has no batch axis"


class MixesRows(BaseException):
    """The module must not be cut; the message is the reason, as the end of a sentence.

    A `BaseException`, so that no `except Exception` of the model's goes on with one rank's rows.
    """


def meet(name: str) -> str:
    """That an operation makes something of several rows."""
    return f"{MIXES} ({name})"
