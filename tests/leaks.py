"""What a test may leave behind: nothing. Snapshots of threads, processes, shared memory, environment."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
GRACE_SECONDS = 3.0

# Libraries set these when they are first imported, whichever test that happens to be in.
SET_BY_LIBRARIES = ("PYTEST_", "KMP_", "TORCHINDUCTOR_", "TORCH_HOME")
# multiprocessing and torch keep one of these alive until the interpreter ends.
LIVES_ON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "torch_shm_manager")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What there is at one moment; `leaks_since` names what has come since an earlier one."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    segments: frozenset[str]
    environment: dict[str, str]

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            # A dummy stands for a thread that another library runs: autograd has one for each CUDA device.
            threads=frozenset(t for t in threading.enumerate() if not isinstance(t, threading._DummyThread)),
            children=frozenset(descendants()),
            segments=frozenset(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else frozenset(),
            environment=environment(),
        )

    def leaks_since(self, before: Snapshot) -> list[str]:
        leaks = [f"thread {thread.name}" for thread in self.threads - before.threads if thread.is_alive()]
        leaks += [f"process {text}" for pid in self.children - before.children if (text := _describe(pid))]
        leaks += [
            f"{SHARED_MEMORY / name}"
            for name in self.segments - before.segments
            if not _belongs_to_others(name)
        ]
        changed = {
            name
            for name in self.environment.keys() | before.environment.keys()
            if self.environment.get(name) != before.environment.get(name)
        }
        return sorted(leaks) + [f"environment variable {name}" for name in sorted(changed)]


def leaks_since(before: Snapshot) -> list[str]:
    """Leaks that are still there after a moment of grace: ends of processes and threads take a little.

    What comes only meanwhile is somebody else's: tests run in several processes.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    leaks = Snapshot.take().leaks_since(before)
    while leaks := sorted({*leaks} & {*Snapshot.take().leaks_since(before)}):
        if time.monotonic() > deadline:
            return leaks + torch_leaks()
        multiprocessing.active_children()  # reaps the ones that have ended
        time.sleep(0.02)
    return torch_leaks()


def environment() -> dict[str, str]:
    """The variables that are a test's concern."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SET_BY_LIBRARIES)}


def descendants() -> set[int]:
    """The processes below this one, ended ones included: asked of the kernel twice for every test.

    To look at all processes of the host, as psutil does where the kernel keeps no such lists, takes a hundred
    times as long.
    """
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        return {child.pid for child in psutil.Process().children(recursive=True)}
    # A list that is read while one of it ends may lack another, so it is read twice.
    return _below(os.getpid()) | _below(os.getpid())


def _below(pid: int) -> set[int]:
    found: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found |= {int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()}
    except OSError:  # it has ended meanwhile
        pass
    return found.union(*map(_below, found))


def torch_leaks() -> list[str]:
    """State of torch that a test must put back; empty where no test has imported torch yet."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    leaks: list[str] = []
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        leaks.append("torch.distributed's default process group")
    if torch.get_default_dtype() != torch.float32:
        leaks.append(f"default dtype {torch.get_default_dtype()}")
    if not torch.is_grad_enabled():
        leaks.append("gradients switched off")
    return leaks


def _describe(pid: int) -> str:
    """The process in words; empty where it has ended or is one that stays by design."""
    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline())
        if process.status() == psutil.STATUS_ZOMBIE or any(name in command for name in LIVES_ON):
            return ""
    except psutil.NoSuchProcess:
        return ""
    return f"{pid}: {command[:200]}"


def _belongs_to_others(segment: str) -> bool:
    """Whether a live process outside this test run maps or holds the segment (another run on this host)."""
    path = str(SHARED_MEMORY / segment)
    own = {os.getpid(), *descendants()}
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        try:
            if any(mapped.path == path for mapped in process.memory_maps()) or any(
                opened.path == path for opened in process.open_files()
            ):
                return True
        except psutil.Error:
            continue
    return False
