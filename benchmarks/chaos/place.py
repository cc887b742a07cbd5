"""Places for the ranks of a case: this host, or several."""

from __future__ import annotations

import shlex
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, final

from benchmarks.chaos.case import Case, Harm

__all__ = ["MakePlace", "Place", "PlaceUnavailable", "Stubs", "ThisHost"]


class PlaceUnavailable(Exception):
    """The machine cannot make this place; the message says why."""


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
        """Name the host of a rank, as an explanation does; "" for the only one."""

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
        """Harm the place in this way."""
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
    """Two hosts, both of them this one, behind a command in place of ssh."""

    def options(self, ranks: int) -> Sequence[str]:
        command = shlex.join(("sh", "-c", 'eval "$1"'))
        return ("-H", f"127.0.0.1:{ranks - 1},127.0.0.2:1", "--ssh-command", command)

    def host_of(self, rank: int, ranks: int) -> str:
        return "127.0.0.2" if rank == ranks - 1 else "127.0.0.1"
