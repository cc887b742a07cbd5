"""The notebook around this process: names of its cells, and short errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["cell_label", "in_brief", "shell_of_user"]

Raised = TypeVar("Raised", bound=BaseException)


def shell_of_user() -> Any:
    """Return IPython's shell of this process; None without one."""
    room = sys.modules.get("IPython")
    return None if room is None else room.get_ipython()


def cell_label() -> Callable[[str], str]:
    """Return a function that names the cell of a file, such as `Cell In[3]`."""
    compiler = getattr(shell_of_user(), "compile", None)
    name_of = getattr(compiler, "format_code_name", None)
    if name_of is None:
        return str
    return lambda file: " ".join(name_of(file) or (file,))


def in_brief(error: Raised, text: str) -> Raised:
    """Let a notebook show an error as one line, because its frames are ronde's."""
    # IPython asks for this method.
    vars(error)["_render_traceback_"] = lambda: [text]
    return error
