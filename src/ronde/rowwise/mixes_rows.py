"""What ends an observed call of a module that must not be cut."""

from __future__ import annotations

__all__ = [
    "BACKWARD",
    "COUNTS",
    "HOST_READ",
    "MIXES",
    "NO_AXIS",
    "MixesRows",
    "cannot_draw",
    "changes",
    "keeps",
    "meet",
]

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
    return f"rows of the batch meet inside it ({name})"


def changes(what: str, name: str) -> str:
    """That an operation writes to what is not the module's to write to."""
    return f"it changes {what} in place ({name})"


def cannot_draw(what: str) -> str:
    """That of a random operation no rows can be taken."""
    return f"its random draws cannot be cut ({what})"


def keeps(name: str) -> str:
    """That something of the batch stays where a call will find it."""
    if name.startswith("the variable"):
        return f"{name} depends on the batch"
    return f"it keeps {name}, which depends on the batch, on itself"
