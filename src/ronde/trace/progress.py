"""Progress of rank 0, in a file that its launcher maps as well.

Writing costs the rank a fraction of a microsecond and no system call, so it may happen at every step.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

__all__ = ["Pulse"]

STEPS, SAMPLES, ATTENDED, DEBUGGED = range(4)
SIZE = 4 * 8


class Pulse:
    """One run's numbers, shared by two processes; the rank writes, the launcher reads."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._numbers = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls, path: Path) -> Pulse | None:
        """Make the file; None where that is impossible: a run works without it."""
        return cls._mapped(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, bytes(SIZE))

    @classmethod
    def open(cls, path: Path) -> Pulse | None:
        """Open the pulse that a launcher has made; None without a watching launcher."""
        return cls._mapped(path, os.O_RDWR, b"")

    @classmethod
    def _mapped(cls, path: Path, flags: int, content: bytes) -> Pulse | None:
        try:
            descriptor = os.open(path, flags, 0o666)  # os.open is not mediated
        except OSError:
            return None
        try:
            # Written, not only extended: on a full disk a store into an unallocated page would kill the
            # process.
            os.write(descriptor, content)
            return cls(descriptor)
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._numbers[STEPS]

    @property
    def samples(self) -> int:
        """Samples trained on so far."""
        return self._numbers[SAMPLES]

    def beat(self, steps: int, samples: int) -> None:
        self._numbers[STEPS] = steps
        self._numbers[SAMPLES] = samples

    @property
    def attended(self) -> bool:
        """Return whether the user has the terminal, in a debugger or at `input`."""
        return bool(self._numbers[ATTENDED])

    @attended.setter
    def attended(self, value: bool) -> None:
        self._numbers[ATTENDED] = int(value)

    @property
    def debugged(self) -> bool:
        """Return whether a debugger was opened on rank 0.

        Ctrl-C at the terminal then goes to the debugger.
        """
        return bool(self._numbers[DEBUGGED])

    @debugged.setter
    def debugged(self, value: bool) -> None:
        self._numbers[DEBUGGED] = int(value)

    def close(self) -> None:
        self._numbers.release()
        self._memory.close()
