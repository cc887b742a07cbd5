"""Where the ranks of a case run: this host, or several, and what can be done to them."""

from __future__ import annotations

import shlex
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, final

from ronde.bench.chaos.case import Case, Harm

__all__ = ["MakePlace", "Place", "Stubs", "ThisHost"]


class Place(ABC):
    """A place for one case.

    Attributes:
        has_links: its hosts have links between them, which can be harmed.
    """

    has_links = False

    @abstractmethod
    def options(self, ranks: int) -> Sequence[str]:
        """Options of `ronde run` and of `ronde doctor` by which ranks are there."""

    @abstractmethod
    def host_of(self, rank: int, ranks: int) -> str:
        """The name that an explanation has for the host of a rank; "" where there is one only."""

    def start(
        self, words: Sequence[str], here: Path, environment: Mapping[str, str], output: IO[bytes] | int
    ) -> subprocess.Popen[bytes]:
        """Start a command on the launcher's host."""
        return subprocess.Popen(
            words,
            cwd=here,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output if not isinstance(output, int) else subprocess.PIPE,
            start_new_session=True,
        )

    def launcher(self, process: subprocess.Popen[bytes]) -> int:
        """The process of a started command, which takes signals."""
        return process.pid

    def harm(self, what: Harm, launcher: int) -> None:
        """Do this to the place."""
        raise NotImplementedError(f"{what}: there is one host")


MakePlace = Callable[[Case, Path], AbstractContextManager[Place]]


@final
class ThisHost(Place):
    """All ranks here."""

    def options(self, ranks: int) -> Sequence[str]:
        return ("--ranks", str(ranks))

    def host_of(self, rank: int, ranks: int) -> str:
        return ""


@final
class Stubs(Place):
    """The last rank on another host, which is this one, too, behind a command in place of ssh."""

    def options(self, ranks: int) -> Sequence[str]:
        command = shlex.join(("sh", "-c", 'eval "$1"'))
        return ("-H", f"127.0.0.1:{ranks - 1},127.0.0.2:1", "--ssh-command", command)

    def host_of(self, rank: int, ranks: int) -> str:
        return "127.0.0.2" if rank == ranks - 1 else "127.0.0.1"
