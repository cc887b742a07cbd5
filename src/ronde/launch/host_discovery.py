"""The hosts that a run may use: by a list, file or script."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ronde.cluster.host_list import HostSlots, parse_hosts
from ronde.cluster.reach import is_this_host
from ronde.errors import RondeError, UsageError
from ronde.launch.remote_command import RemoteExec

__all__ = ["HostDiscovery", "discovered"]

_SCRIPT_S = 60.0
_ANSWER_S = 10.0


class HostDiscovery:
    """The named hosts of a run, and a test of which answer.

    Args:
        named: function that returns the present hosts.
        way: command that starts a process on a host.
        always: whether this host is also reached by that command.

    Attributes:
        trouble: reason why the last list of hosts failed; "" for a good one.
    """

    def __init__(self, named: Callable[[], tuple[HostSlots, ...]], way: RemoteExec, *, always: bool) -> None:
        self._named, self._way, self._always = named, way, always
        self._last: tuple[HostSlots, ...] = ()
        self.trouble = ""

    def named(self) -> tuple[HostSlots, ...]:
        """Return the named hosts, or the last ones when the list fails."""
        try:
            self._last = self._named()
            self.trouble = ""
        except RondeError as error:
            self.trouble = str(error)
        return self._last

    def answering(self, *, trusted: Sequence[str] = ()) -> tuple[HostSlots, ...]:
        """Return the named hosts that answer, within ten seconds.

        Args:
            trusted: names of hosts that need not be asked.
        """
        hosts = self.named()
        asked = {
            host.name: self._ask(host.name)
            for host in hosts
            if host.name not in trusted and (self._always or not is_this_host(host.name))
        }
        silent = {name for name, process in asked.items() if not _has_answered(process)}
        return tuple(host for host in hosts if host.name not in silent)

    def _ask(self, name: str) -> subprocess.Popen[bytes]:
        null = subprocess.DEVNULL
        words = self._way.words(name, "exit 0", 0)
        return subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)


def _has_answered(process: subprocess.Popen[bytes]) -> bool:
    try:
        return process.wait(_ANSWER_S) == 0
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        return False


def discovered(script: Path, slots: int = 1) -> tuple[HostSlots, ...]:
    """Read the hosts that a script prints: a line `host:slots` or `host` for each.

    Args:
        slots: number of slots of a host without one.

    Raises:
        UsageError: the script cannot be run, fails, or prints something else.
    """
    option = f"--host-discovery-script {script}"
    try:
        done = subprocess.run(
            [os.path.abspath(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SCRIPT_S,
        )
    except OSError as error:
        raise UsageError(
            f"{option} cannot be run: {error.strerror}; it must be a program that prints host:slots [R156]"
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{option} has not ended for {_SCRIPT_S:g} s; it must print host:slots and end [R156]"
        ) from None
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        raise UsageError(f"{option} failed with exit code {done.returncode}: {last} [R156]")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return parse_hosts(",".join(lines), origin=option, slots=slots) if lines else ()
