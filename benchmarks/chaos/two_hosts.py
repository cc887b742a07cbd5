"""Place for cases: hosts with links that can be cut and slowed."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, final

from benchmarks.chaos import remote_shell
from benchmarks.chaos.case import Case, Harm
from benchmarks.chaos.place import Place, PlaceUnavailable
from benchmarks.chaos.shifted_clock import shifted_clock
from ronde.testing.hosts import Host, HostsUnavailable, Network

__all__ = ["two_hosts"]

NAMES = ("one", "two", "three")
_SSH_PORT = 2222


@contextlib.contextmanager
def two_hosts(case: Case, here: Path) -> Iterator[Place]:
    """Make the hosts of one case, with the differences that it wants.

    Args:
        here: folder of the case.

    Raises:
        PlaceUnavailable: hosts cannot be made here, or not as the case wants them.
    """
    with contextlib.ExitStack() as made:
        try:
            place = _made(case, here, made)
        except HostsUnavailable as why:
            raise PlaceUnavailable(str(why)) from None
        yield place


def _made(case: Case, here: Path, made: contextlib.ExitStack) -> Place:
    network = made.enter_context(Network(len(NAMES), names=NAMES))
    launcher, other = network.hosts[0], network.hosts[1]
    for host, line in ((launcher, case.launcher_there), (other, case.there)):
        if line:
            _shell(host, line.format(here=here, torch=_torch_version_file()))
    for host in network.hosts:
        seconds = case.clock if host is other else 0.0
        environment = {**os.environ, **(shifted_clock(seconds, here) if seconds else {})}
        made.callback(_end, _serve(host, environment))
    place = _TwoHosts(case, network.hosts)
    if case.needs == "sshd":
        place.ssh = _sshd(network.hosts[:2], here, made)
    return place


@final
class _TwoHosts(Place):
    """The launcher is on the first host.

    Attributes:
        ssh: the command that leads to hosts, with its options.
    """

    has_links = True

    def __init__(self, case: Case, hosts: Sequence[Host]) -> None:
        self.ssh: Sequence[str] = ("--ssh-command", shlex.join(remote_shell.command()))
        self._names = case.hosts or tuple(host.name for host in hosts[:2])
        self._hosts = hosts

    def options(self, ranks: int) -> Sequence[str]:
        one, two = self._names
        return ("-H", f"{one}:{ranks - 1},{two}:1", *self.ssh)

    def host_of(self, rank: int, ranks: int) -> str:
        return self._names[rank == ranks - 1]

    def start(
        self, words: Sequence[str], here: Path, environment: Mapping[str, str], output: IO[bytes] | int
    ) -> subprocess.Popen[bytes]:
        return super().start(self._hosts[0].command(words, directory=str(here)), here, environment, output)

    def launcher(self, process: subprocess.Popen[bytes]) -> int:
        """The only child of the command that enters a host."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        with contextlib.suppress(OSError):
            return int((children.read_text().split() or [process.pid])[0])
        return process.pid

    def harm(self, what: Harm, launcher: int) -> None:
        two, three = self._hosts[1:]
        if what == "cut":
            two.cut()
        elif what == "off":
            two.turn_off()
        elif what == "mute":
            two.mute()
        elif what == "deafen":
            two.deafen()
        elif what == "forget":
            two.forget(three)
        elif what == "slow":
            two.limit("1mbit", burst="32kb")
        elif what == "launcher":
            os.kill(launcher, signal.SIGKILL)
        elif what == "store":
            os.kill(_child_with(launcher, "ronde.runtime.store"), signal.SIGKILL)


def _serve(host: Host, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    words = [*remote_shell.command()[:-1], "serve"]
    server = host.popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert server.stdout is not None
    with server.stdout:
        if server.stdout.readline() != "listens\n":
            raise HostsUnavailable(f"no server came up on {host.name}")
    return server


def _sshd(hosts: Sequence[Host], here: Path, served: contextlib.ExitStack) -> Sequence[str]:
    """Start ssh servers, the last one without a key; return options of ssh."""
    server = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    for name in ("host-key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(here / name)], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    for host in hosts:
        known = here / "key.pub" if host is not hosts[-1] else here / "none"
        settings = {
            "HostKey": here / "host-key", "AuthorizedKeysFile": known, "StrictModes": "no", "UsePAM": "no",
            "PidFile": "none", "PermitRootLogin": "yes",
        }  # fmt: skip
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        words = [server or "sshd", "-D", "-e", "-p", str(_SSH_PORT), "-f", "/dev/null", *options]
        process = host.popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        served.callback(_end, process)
        assert process.stderr is not None
        served.callback(process.stderr.close)
        if "Server listening" not in process.stderr.readline():
            raise HostsUnavailable(f"no ssh server came up on {host.name}")
    ssh = (
        f"ssh -i {here / 'key'} -oIdentitiesOnly=yes -oStrictHostKeyChecking=no "
        "-oUserKnownHostsFile=/dev/null -oLogLevel=ERROR"
    )
    return ("--ssh-command", ssh, "--ssh-port", str(_SSH_PORT))


def _shell(host: Host, line: str) -> None:
    done = host.popen(["sh", "-c", line], stderr=subprocess.PIPE)
    _, said = done.communicate(timeout=20)
    if done.returncode:
        raise HostsUnavailable(f"`{line}` failed on {host.name}: {said.strip()}")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def _torch_version_file() -> Path:
    spec = find_spec("torch")
    return Path("torch" if spec is None or spec.origin is None else spec.origin).with_name("version.py")


def _child_with(parent: int, words: str) -> int:
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if words in Path(f"/proc/{child}/cmdline").read_text():
            return int(child)
    raise ProcessLookupError(f"process {parent} has no child with {words}")
