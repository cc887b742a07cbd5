"""Exit codes of the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from ronde.errors import RondeError
from ronde.messages import as_error

__all__ = ["INTERRUPTED", "exit_with"]

INTERRUPTED = 128 + 2  # a shell's code of a process that SIGINT ended


def exit_with(command: Callable[[], int | None]) -> NoReturn:
    """Exit with the code that a command returns.

    Ctrl-C ends it without a word. A `RondeError` is one line on stderr and its `exit_code`; any other
    exception is a defect of ronde and keeps its traceback.
    """
    try:
        code = command()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except RondeError as error:
        print(f"ronde: {as_error(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(code or 0)
