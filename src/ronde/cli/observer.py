"""The program of an observer: see `ronde.launch.observer`."""

from __future__ import annotations

import sys

__all__ = ["COMMAND", "main"]

# No file of its working directory may be taken for a module.
COMMAND = (
    sys.executable,
    "-c",
    "import sys; sys.path[:1] = []; from ronde.cli.observer import main; main()",
)


def main() -> None:
    """Look on until the ranks of this host are gone."""
    from ronde.cli.explaining import explain
    from ronde.launch.observer import observe

    observe(explain)
