"""The command line: argument parsing and printing, nothing else."""

from __future__ import annotations

import sys

try:
    from ronde.cli.entry import main
except KeyboardInterrupt:  # while the command itself is being imported
    sys.exit(130)

__all__ = ["main"]
