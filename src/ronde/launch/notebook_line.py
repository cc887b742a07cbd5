"""One line below a notebook's cell, redrawn in place."""

from __future__ import annotations

import html
from typing import Any

from ronde.launch.notebook_shell import shell_of_user

__all__ = ["NotebookLine"]


class NotebookLine:
    """A progress bar with a text, as a display of the cell that runs."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    @classmethod
    def of_user(cls) -> NotebookLine | None:
        """Return a line of the notebook of this process; None without a kernel."""
        if getattr(shell_of_user(), "kernel", None) is None:
            return None
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        return cls(display)

    def show(self, text: str) -> None:
        # The number of steps is not known: a bar without a value moves.
        self._draw({"text/plain": text, "text/html": f"<progress></progress> {html.escape(text)}"})

    def wipe(self) -> None:
        if self._handle is not None:
            self._draw({"text/plain": "", "text/html": ""})

    def silent_since(self) -> float:
        """Return a time long ago, because output of the script appears elsewhere."""
        return 0.0

    def _draw(self, data: dict[str, str]) -> None:
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
