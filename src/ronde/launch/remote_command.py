"""The command that starts an agent on a host, and explanations of its failures."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal

from ronde.launch.trouble import Trouble

__all__ = ["RemoteExec", "agent_line", "why_it_failed"]

NO_DIRECTORY, NO_INTERPRETER = 71, 72
_SSH_FAILED = 255
# Options: no password prompt, a short connection timeout, and detection of a dead connection.
_SSH_OPTIONS = (
    "-oBatchMode=yes",
    "-oConnectTimeout=5",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=4",
)
# A file of the present directory must not shadow a module.
_AGENT = "import sys; sys.path[:1] = []; from ronde.{} import main; main()"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RemoteExec:
    """Command that runs processes on hosts.

    Attributes:
        kind: `ssh` (or a replacement of it), `srun` inside an allocation, or an actor of `ray`.
        command: the command and its own options.
        port: port of the ssh servers; None: the default of ssh.
    """

    kind: Literal["ssh", "srun", "ray"] = "ssh"
    command: tuple[str, ...] = ("ssh",)
    port: int | None = None

    def words(self, host: str, line: str, ranks: int) -> list[str]:
        """Return the command that runs the shell line `line` on `host` for `ranks` ranks."""
        if self.kind == "ray":
            return [*self.command, host, str(ranks), line]
        if self.kind == "srun":
            # One job step for each agent, so that each has separate pipes.
            place = ["--nodes=1", "--ntasks=1", f"--nodelist={host}", "--overlap", "--unbuffered"]
            return [*self.command, *place, "sh", "-c", line]
        words = list(self.command)
        if os.path.basename(words[0]) == "ssh":
            words += _SSH_OPTIONS
        if self.port is not None:
            words += ["-p", str(self.port)]
        return [*words, host, f"sh -c {shlex.quote(line)}"]

    def try_by_hand(self, host: str) -> str:
        """Return a command by which the user can try the connection to a host."""
        if self.kind == "ray":
            return "ray status"
        port = f" -p {self.port}" if self.port is not None else ""
        return f"{shlex.join(self.command)}{port} {host} true"


def agent_line(
    python: str, directory: str, environment: Mapping[str, str], module: str = "launch.agent"
) -> str:
    """Return the shell line that becomes an agent, or exits with a specific code.

    Args:
        module: module of ronde whose `main` is the agent.
    """
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    quoted = shlex.quote(python)
    return (
        f"cd {shlex.quote(directory)} 2>/dev/null || exit {NO_DIRECTORY}; "
        f"test -x {quoted} || exit {NO_INTERPRETER}; "
        f"exec env {settings} {quoted} -c {shlex.quote(_AGENT.format(module))}"
    )


def why_it_failed(
    host: str, code: int, said: Sequence[str], way: RemoteExec, *, python: str, directory: str
) -> Trouble:
    """Explain why no agent started on `host`, with a fix.

    Args:
        code: exit code of the command.
        said: the last lines of its stderr.
    """
    what, fix = _told(host, code, said, way, python, directory)
    return Trouble(host=host, check="reached", what=what, fix=fix)


def _told(
    host: str, code: int, said: Sequence[str], way: RemoteExec, python: str, directory: str
) -> tuple[str, str]:
    words = "\n".join(said)
    port = f" -p {way.port}" if way.port is not None else ""
    if code == NO_DIRECTORY:
        return (
            f"{host} has no directory {directory} [R106]",
            "start in one that is on every host (a shared file system, or a copy)",
        )
    if code == NO_INTERPRETER:
        return f"{host} has no {python} [R106]", "install the same environment there, at the same path"
    if "No module named 'ronde'" in words:
        return f"{host} has no ronde for {python} [R106]", f"install it there: {python} -m pip install ronde"
    if way.kind == "srun":
        last = f"srun started no agent on {host}: {_last(said, code)} [R105]"
        return last, f"try: srun --nodelist={host} true"
    if way.kind == "ray":
        return f"Ray started no agent on {host}: {_last(said, code)} [R166]", "try: ray status"
    if "Permission denied" in words:
        return f"{host} asks for a password [R101]", f"give it your key: ssh-copy-id{port} {host}"
    if "Host key verification failed" in words:
        return f"{host} is not known yet [R102]", f"look at its key once, by hand: ssh{port} {host}"
    if "Could not resolve" in words:
        return (
            f"{host} cannot be resolved on this host [R103]",
            "write its address, or add it to /etc/hosts",
        )
    if "Connection refused" in words:
        return (
            f"{host} runs no ssh server on this port [R104]",
            "start it there, or give the right port by --ssh-port",
        )
    by_hand = way.try_by_hand(host)
    if code == _SSH_FAILED:
        return (
            f"{host} is not reached by ssh: {_last(said, code)} [R105]",
            f"see whether it is up; try: {by_hand}",
        )
    return f"no agent came up on {host}: {_last(said, code)} [R105]", f"try: {by_hand}"


def _last(said: Sequence[str], code: int) -> str:
    lines = [line.strip() for line in said if line.strip()]
    return lines[-1] if lines else f"exit code {code}"
