"""The command line: argument parsing and printing, nothing else."""

from __future__ import annotations

from ronde.cli.app import main

__all__ = ["main"]
