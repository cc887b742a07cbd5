"""Codes of messages, and the explanation of each code.

A message ends with its code in square brackets, `... [R104]`, so that the code crosses processes, JSON and
exceptions with the text. What the user reads begins with it: `ronde: error[R104]: ...`.
"""

from __future__ import annotations

from ronde.messages.code import as_error, as_note, lift

__all__ = ["as_error", "as_note", "lift"]
