"""The parameter servers of this host: start, restart, end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ronde.cluster.environment import hidden_from_script
from ronde.errors import LaunchError
from ronde.launch.allocator import keeping_memory
from ronde.launch.linux_process import bind_to_parent, load_prctl
from ronde.launch.rank_environment import RUN_ID_KEY
from ronde.launch.server_config import SERVER_KEY, ServerConfig
from ronde.trace.run_directory import RunDirectory

__all__ = ["CANNOT_SERVE", "SERVER", "Servers"]

SERVER = (sys.executable, "-m", "ronde.server.process")

# : The exit code of a server that refuses to start, with a written reason; a restart would not help.
CANNOT_SERVE = 3

_MOST_RESTARTS_IN_A_ROW = 3
_MOST_KILLS_IN_A_ROW = 20  # for instance by the kernel when memory runs out
_STABLE_S = 30.0
_TERMINATION_S = 2.0


@dataclasses.dataclass(slots=True)
class _Running:
    config: ServerConfig
    process: subprocess.Popen[bytes]
    begun: float
    failures: int = 0


class Servers:
    """The server processes of one run.

    Args:
        configs: configuration of each; its state lies in the run directory.
        environment: variables from which theirs are made.
    """

    def __init__(
        self,
        configs: Sequence[ServerConfig],
        directory: RunDirectory,
        environment: Mapping[str, str],
        command: tuple[str, ...] = SERVER,
    ) -> None:
        self._directory = directory
        self._command = command
        hidden = hidden_from_script(environment)
        self._environment = {name: value for name, value in environment.items() if name not in hidden}
        self._environment.update(keeping_memory(self._environment))
        self._environment[RUN_ID_KEY] = directory.run_id
        self._environment.setdefault("OMP_NUM_THREADS", "1")  # they share the cores with the ranks
        self._configs = [
            dataclasses.replace(
                config,
                directory=str(directory.server_state(config.index)),
                refusal=str(directory.server_refusal(config.index)),
            )
            for config in configs
        ]
        self._running: list[_Running] = []
        self.pids: set[int] = set()

    def start(self) -> None:
        """Start all servers.

        Raises:
            LaunchError: a server could not be started; started ones have been ended.
        """
        try:
            for config in self._configs:
                self._running.append(_Running(config, self._start(config), time.monotonic()))
        except BaseException:
            self.end()
            raise

    def look(self, say: Callable[[str], object]) -> str:
        """Restart dead servers; return why the run must end, or "".

        Args:
            say: function that tells the user of a restart.
        """
        for each in self._running:
            code = each.process.poll()
            if code is None:
                continue
            lived = time.monotonic() - each.begun
            each.failures = each.failures + 1 if lived < _STABLE_S else 1
            index = each.config.index
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            log = self._directory.server_log(index)
            if code == CANNOT_SERVE:
                return f"server {index} cannot serve: {_refusal(each.config, log)} [R401]"
            most = _MOST_RESTARTS_IN_A_ROW if code > 0 else _MOST_KILLS_IN_A_ROW
            if lived < _STABLE_S and each.failures > most:
                return f"server {index} ended {each.failures} times in a row ({how}); see {log} [R401]"
            if each.config.durability != "log":
                return (
                    f"server {index} ended ({how}), and its state is lost under --durability "
                    f"{each.config.durability}; begin again from the script's checkpoint; see {log} [R402]"
                )
            each.config = dataclasses.replace(each.config, started=each.config.started + 1)
            each.process, each.begun = self._start(each.config), time.monotonic()
            say(f"server {index} ended ({how}) and was started again; workers wait for it; see {log} [R400]")
        return ""

    def end(self) -> None:
        """Ask all servers to end, then kill the rest."""
        for each in self._running:
            with contextlib.suppress(ProcessLookupError):
                each.process.terminate()
        until = time.monotonic() + _TERMINATION_S
        for each in self._running:
            try:
                each.process.wait(max(until - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait(_TERMINATION_S)
        self._running = []

    def _start(self, config: ServerConfig) -> subprocess.Popen[bytes]:
        library, launcher = load_prctl(), os.getpid()

        def prepare() -> None:
            bind_to_parent(library, launcher)
            os.setpgid(0, 0)  # Ctrl-C is for the ranks: servers end after them
            signal.pthread_sigmask(signal.SIG_SETMASK, [])

        environment = {**self._environment, SERVER_KEY: config.to_json()}
        try:
            with self._directory.server_log(config.index).open("ab") as log:
                process = subprocess.Popen(
                    self._command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=prepare,  # noqa: PLW1509 - nothing in it waits for another thread
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchError(
                f"server {config.index} could not be started ({error}); see `ulimit -u` and free "
                "memory [R420]"
            ) from None
        self.pids.add(process.pid)
        return process


def _refusal(config: ServerConfig, log: Path) -> str:
    """Read the reason why a server refused to start."""
    try:
        return Path(config.refusal).read_text(encoding="utf-8")
    except OSError:
        return f"see {log}"
