"""Which hosts a run may use now: a list, a file that is read again, or what a script of the user's prints."""

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
    """The hosts that are named, and those of them that answer.

    Args:
        named: gives the hosts, each time anew.
        way: by which they are reached.
        always: this host is asked by that way too.

    Attributes:
        trouble: why the hosts could not be named when they were asked for last; "" if they could.
    """

    def __init__(self, named: Callable[[], tuple[HostSlots, ...]], way: RemoteExec, *, always: bool) -> None:
        self._named, self._way, self._always = named, way, always
        self._last: tuple[HostSlots, ...] = ()
        self.trouble = ""

    def named(self) -> tuple[HostSlots, ...]:
        """The hosts that the run may use; those of the last time where nobody can say."""
        try:
            self._last = self._named()
            self.trouble = ""
        except RondeError as error:
            self.trouble = str(error)
        return self._last

    def answering(self, *, trusted: Sequence[str] = ()) -> tuple[HostSlots, ...]:
        """Those of the named hosts that can be reached; it takes up to ten seconds.

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
    """What a script prints: a host a line, `host:slots` or `host`, as Horovod's do.

    Args:
        slots: of a host without a number.

    Raises:
        UsageError: it cannot be run, fails, or prints something else.
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
            f"{option} cannot be run: {error.strerror}; it is a program that prints host:slots"
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{option} has not ended for {_SCRIPT_S:g} s; it is to print host:slots and end"
        ) from None
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        raise UsageError(f"{option} failed with exit code {done.returncode}: {last}")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return parse_hosts(",".join(lines), origin=option, slots=slots) if lines else ()
