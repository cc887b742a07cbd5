"""Directory of one run: logs, error reports, summaries, and the local store.

    ~/.local/state/ronde/runs/20261121-035133-5f0c2a/
        rank-0.log            output of rank 0 (also shown), rank-1.log, ...
        rank-1.error.json     error report of rank 1
        rank-1.stack          stacks of rank 1 on its launcher's request; rank-1.crash: when it crashed
        rank-1.vitals         its beat and its steps
        rank-1.attempt-1.log  the same of ranks that were started again, with their error reports
        launch.json           processes and hosts of the run, for `ronde doctor`
        waiting.json          of ranks on several hosts: the wait of each
        hosts.json            of ranks that another launcher has started on several: names and addresses
        evidence/             evidence at a stall or failure, and its explanation
        rank-0.summary.json   summary of rank 0's time
        rank-0.steps          its steps; rank-0.spans with --trace
        events.jsonl          start, notices and end of the run
        spans.json            with --trace: some of the spans, for the page
        metrics.prom          the last metrics, with --metrics
        server-0.log          output of parameter server 0
        server-0/             its log of changes and its snapshots, while the run needs them
        pulse                 how far the run is, for the progress line
        boundary.board        lockstep entries and waits of ranks; reducer.board for gradients
        store                 the file store of local ranks
        store.log             of ranks on several hosts: output of the process that serves it
        host-1/               of ranks on several hosts, where the user has chosen DIR: that host's own files
        lock                  held by processes that use the directory

Runs live in the user's state directory, so that the project of the user stays clean.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ronde.errors import LaunchError

__all__ = ["NODE_ID", "RUN_ID", "RunDirectory", "default_root", "new_run_id", "prune"]

KEPT_RUNS = 20
LEAST_FREE_BYTES = 4 * 1024 * 1024
RUN_ID = re.compile(r"(\d{8}-\d{6}|torchrun|joined)-[0-9a-f]{6,}")
# Run id of a node of several: the run's id, the attempt, the node.
NODE_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{12}")
OWN_FILE = re.compile(
    r"rank-\d+(\.attempt-\d+)?\.(log|error\.json|summary\.json|stack|crash|vitals|steps|spans|position)|\w+\.board"
    r"|store(\.\d+)?|store\.log|pulse|launch\.json|(waiting|hosts|spans)\.json|asked|server-\d+\.refusal|events\.jsonl"
    r"|printed-\w+|metrics\.prom"
)
_OF_ALL_ATTEMPTS = re.compile(r"events\.jsonl|printed-\w+")
_KEPT = re.compile(r"(rank-\d+)\.(log|error\.json|steps)")

OWN_EVIDENCE = re.compile(
    r"(attempt-\d+\.)?(stall|failure|end|asked|explanation)(\.json|-rank-\d+\.(stack|crash)\.txt)"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunDirectory:
    """Existing directory of one run, locked as long as `lock` is open.

    A `lock` of -1 means that it could not be locked.
    """

    path: Path
    run_id: str
    lock: int = -1

    @classmethod
    def create(cls, path: Path | None, environment: Mapping[str, str]) -> RunDirectory:
        """Make the directory of a new run, and hold it exclusively.

        By default it lies under the state directory. A directory chosen by the user may hold the files of an
        earlier run: they are removed, because ranks would meet in its old store; nothing else in it is
        touched.
        """
        return cls._held_alone(path, new_run_id(), environment)

    @classmethod
    def join(cls, path: Path | None, run_id: str, environment: Mapping[str, str]) -> RunDirectory:
        """Open the directory that several processes of this host share, or make it.

        The lock is shared and survives `exec`, so that the directory counts as used as long as
        any of them lives.
        """
        directory = path.absolute() if path is not None else _usable_root(environment) / run_id
        directory = _make_writable(directory)
        lock = _lock(directory, fcntl.LOCK_SH)
        if lock >= 0:
            os.set_inheritable(lock, True)
        return cls(path=directory, run_id=run_id, lock=lock)

    @classmethod
    def of_host(
        cls, path: Path | None, run_id: str, host: int, environment: Mapping[str, str]
    ) -> RunDirectory:
        """Make the directory of one host in a run on several hosts.

        It is DIR/host-N where the user has chosen DIR. `run_id` is that host's own, for several hosts may
        share a file system, or be one machine.
        """
        return cls._held_alone(path and path / f"host-{host}", run_id, environment)

    @classmethod
    def _held_alone(cls, path: Path | None, run_id: str, environment: Mapping[str, str]) -> RunDirectory:
        if path is not None:
            directory = _make_writable(path.absolute())
            lock = _lock(directory, fcntl.LOCK_EX)
            _remove_own_files(directory)
            return cls(path=directory, run_id=run_id, lock=lock)
        root = _usable_root(environment)
        directory = _make_writable(root / run_id)
        lock = _lock(directory, fcntl.LOCK_EX)
        prune(root, keep=KEPT_RUNS)
        return cls(path=directory, run_id=run_id, lock=lock)

    @property
    def store(self) -> str:
        """Store of local ranks, in the form that `RankConfig.store` takes."""
        return f"file://{self.path / 'store'}"

    @property
    def store_log(self) -> Path:
        """Log of the process that serves the store of several hosts."""
        return self.path / "store.log"

    def log(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.log"

    def server_log(self, server: int) -> Path:
        return self.path / f"server-{server}.log"

    def server_refusal(self, server: int) -> Path:
        """File for the reason why a parameter server refuses to start."""
        return self.path / f"server-{server}.refusal"

    def server_state(self, server: int) -> Path:
        """Folder of a parameter server's log and snapshots."""
        return self.path / f"server-{server}"

    def begin_attempt(self, number: int) -> None:
        """Rename or remove the files of attempt `number`, before ranks start again."""
        for entry in list(os.scandir(self.path)):
            match = _KEPT.fullmatch(entry.name)
            if match is not None:
                os.rename(entry.path, self.path / f"{match[1]}.attempt-{number}.{match[2]}")
            elif (
                OWN_FILE.fullmatch(entry.name)
                and "attempt" not in entry.name
                and not _OF_ALL_ATTEMPTS.fullmatch(entry.name)
            ):
                os.unlink(entry.path)
        for path in (self.path / "evidence").glob("*"):
            if OWN_EVIDENCE.fullmatch(path.name) and not path.name.startswith("attempt-"):
                path.rename(path.with_name(f"attempt-{number}.{path.name}"))

    @property
    def is_default(self) -> bool:
        """Return whether the user has not chosen the directory."""
        return self.path.name == self.run_id

    def remove_server_states(self) -> None:
        """Remove the recovery state of servers, which is often larger than the model."""
        for entry in self.path.glob("server-*"):
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)

    def error(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.error.json"

    def stack(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.stack"

    def crash(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.crash"

    @property
    def launch(self) -> Path:
        return self.path / "launch.json"

    @property
    def question(self) -> Path:
        """File by which `ronde doctor` asks the launcher for evidence of all hosts."""
        return self.path / "asked"

    def is_in_use(self) -> bool:
        """Return whether a launcher holds the directory."""
        try:
            handle = _lock(self.path, fcntl.LOCK_SH)
        except LaunchError:
            return True
        except OSError:  # another user's, which cannot be checked
            return False
        if handle >= 0:
            os.close(handle)
        return False

    def summary(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.summary.json"

    @property
    def pulse(self) -> Path:
        return self.path / "pulse"

    def release(self) -> None:
        """Release the lock: the directory may then be pruned or used again."""
        if self.lock >= 0:
            os.close(self.lock)


def new_run_id() -> str:
    """Return a name that sorts by time, unique for runs of the same second."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"


def default_root(environment: Mapping[str, str]) -> Path:
    """Return the folder of runs: `$XDG_STATE_HOME/ronde/runs`, by default under `~/.local/state`."""
    state = environment.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):  # the XDG rules say to ignore a relative path
        return Path(state) / "ronde" / "runs"
    return Path(environment.get("HOME") or os.path.expanduser("~")) / ".local" / "state" / "ronde" / "runs"


def prune(root: Path, *, keep: int) -> None:
    """Remove all but the newest `keep` runs under `root`, except running ones."""
    runs = [entry for entry in os.scandir(root) if RUN_ID.fullmatch(entry.name) and entry.is_dir()]
    runs.sort(key=lambda entry: (entry.stat().st_mtime, entry.name))
    for entry in runs[: max(0, len(runs) - keep)]:
        try:
            lock = _lock(Path(entry.path), fcntl.LOCK_EX)
        except (LaunchError, OSError):  # in use, or removed by another run that starts now
            continue
        shutil.rmtree(entry.path, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def _usable_root(environment: Mapping[str, str]) -> Path:
    """Return the default root, or a temporary one if the home directory is read-only."""
    root = default_root(environment)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if os.access(root, os.W_OK | os.X_OK):
            return root
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise LaunchError(_no_space(root)) from None
    return Path(tempfile.gettempdir()) / f"ronde-{os.getuid()}" / "runs"


def _make_writable(directory: Path) -> Path:
    """Create `directory`; refuse an unwritable one or a full disk."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".probe-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
        free = shutil.disk_usage(directory).free
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LaunchError(_no_space(directory)) from None
        raise LaunchError(
            f"cannot write the run directory {directory}: {error.strerror}; choose another with --run-dir "
            "DIR [R182]"
        ) from None
    if free < LEAST_FREE_BYTES:
        raise LaunchError(_no_space(directory))
    return directory


def _no_space(directory: Path) -> str:
    return (
        f"no space left for the run directory {directory}; free some, or take another disk by "
        "--run-dir DIR [R182]"
    )


def _lock(directory: Path, kind: int) -> int:
    """Lock the directory and return the open file.

    -1 on a file system without locks.
    """
    handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno == errno.EWOULDBLOCK:
            raise LaunchError(
                f"the run directory {directory} is in use by another run; choose another with --run-dir "
                "DIR [R182]"
            ) from None
        return -1
    return handle


def _remove_own_files(directory: Path) -> None:
    for entry in (directory / "evidence").glob("*"):
        if OWN_EVIDENCE.fullmatch(entry.name):
            entry.unlink()
    for entry in os.scandir(directory):
        if OWN_FILE.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
