"""Explanations of errors that a rank raised: well-known kinds, and any other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ronde.trace.evidence import Evidence, RankEvidence
from ronde.trace.explanation import Explanation

__all__ = ["known_error", "loader_killed", "not_finite_error", "refused", "script_error"]


class _Known(NamedTuple):
    """Well-known error: `kind` in the class's name, `words` in message or traceback."""

    cause: str
    kind: str
    words: str
    means: str
    fix: str


_LOADER_KILLED = _Known(
    "loader-worker-killed",
    "",
    r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (is killed by signal|exited unexpectedly)",
    "a loader worker of rank {rank} was killed",
    "its memory was too much (fewer workers, smaller samples), or /dev/shm is too small: see dmesg and "
    "df /dev/shm",
)
# The first match counts. Texts are those of Python, torch and the system.
_ERRORS = (
    _LOADER_KILLED,
    _Known(
        "checkpoint-truncated",
        "",
        r"PytorchStreamReader|failed finding central directory|invalid header or archive is corrupted|"
        r"unexpected EOF, expected|pickle data was truncated|Ran out of input|storage has wrong (byte )?size|"
        r"SafetensorError|Error while deserializing header|incomplete metadata",
        "rank {rank} has read a file that was not written to its end: a checkpoint cut short, mostly",
        "take the checkpoint before it; to keep this from coming again, write under another name and rename",
    ),
    _Known(
        "shared-memory",
        "",
        r"unable to allocate shared memory|out of shared memory|/dev/shm|[Uu]nable to open shared memory|"
        r"unable to (resize|mmap) \d+ bytes from file </torch|insufficient shared memory",
        "rank {rank} found no room in shared memory",
        "make /dev/shm larger (docker run --shm-size=8g), or use fewer loader workers or smaller batches",
    ),
    _Known(
        "disk-full",
        "",
        r"No space left on device|Disk quota exceeded|\[Errno 28\]|\[Errno 122\]|unexpected pos \d+ vs \d+|"
        r"enforce fail at inline_container",
        "rank {rank} could not write: the disk, or the user's share of it, is full",
        "free some space (see df), keep fewer checkpoints, or write to another disk",
    ),
    _Known(
        "file-limit",
        "",
        r"File too large|\[Errno 27\]",
        "rank {rank} wrote a file that became larger than allowed",
        "raise the limit: ulimit -f unlimited; or the file system has one of its own",
    ),
    _Known(
        "too-many-files",
        "",
        r"Too many open files|\[Errno 24\]|\[Errno 23\]|received 0 items of ancdata",
        "rank {rank} has more files open than allowed",
        "close what is opened in a loop; or ulimit -n 65536; of loaders with many workers: "
        'torch.multiprocessing.set_sharing_strategy("file_system")',
    ),
    _Known(
        "port-taken",
        "",
        r"Address already in use|EADDRINUSE|\[Errno 98\]|failed to bind to address",
        "an address that rank {rank} wanted to listen on is taken",
        "end the program that has it (ss -ltnp shows it), or take another port; each rank needs its own: "
        "PORT + ronde.rank()",
    ),
    _Known(
        "too-many-processes",
        "",
        r"can't start new thread|Resource temporarily unavailable|\[Errno 11\]|pthread_create failed|"
        r"unable to create thread",
        "rank {rank} could not start another process or thread",
        "fewer loader workers, or raise the limit: ulimit -u; in a container its pids limit",
    ),
    _Known(
        "device-memory",
        r"OutOfMemoryError",
        r"",
        "rank {rank} ran out of memory on its device",
        "a smaller batch, or --plan zero3,recompute=selective,micro-batches=4",
    ),
    _Known(
        "device-memory",
        "",
        r"CUDA out of memory|CUDA error: out of memory",
        "rank {rank} ran out of memory on its device",
        "a smaller batch, or --plan zero3,recompute=selective,micro-batches=4",
    ),
    _Known(
        "host-memory",
        "",
        r"DefaultCPUAllocator|can't allocate memory|Cannot allocate memory|std::bad_alloc|\[Errno 12\]",
        "rank {rank} could not get more memory",
        "a smaller batch, fewer ranks or loader workers, --plan zero3; or a limit is set: see ulimit -v",
    ),
    _Known(
        "host-memory",
        r"MemoryError",
        r"",
        "rank {rank} could not get more memory",
        "a smaller batch, fewer ranks or loader workers, --plan zero3; or a limit is set: see ulimit -v",
    ),
    _Known(
        "device-error",
        "",
        r"CUDA error|cuDNN error|NCCL error|Xid|uncorrectable ECC",
        "rank {rank} met an error of its device or driver",
        "see nvidia-smi and dmesg (Xid); CUDA_LAUNCH_BLOCKING=1 shows the line; leave out a device on which "
        "it comes again",
    ),
    _Known(
        "module-missing",
        r"ModuleNotFoundError|ImportError",
        r"",
        "rank {rank} could not import what the script needs",
        "install it for the interpreter that runs ronde: python -m pip install NAME",
    ),
    _Known(
        "recursion",
        r"RecursionError",
        r"",
        "a function on rank {rank} called itself without an end",
        "the traceback repeats it; sys.setrecursionlimit helps only where the depth is right",
    ),
    _Known(
        "file-missing",
        r"FileNotFoundError",
        r"",
        "rank {rank} did not find a file",
        "every host needs it under the same path; a relative one counts from the directory of ronde run",
    ),
    _Known(
        "no-permission",
        r"PermissionError",
        r"",
        "rank {rank} was not allowed to use a file",
        "see who owns it, and as whom the ranks run",
    ),
)
_NOT_FINITE = re.compile(r"\b(nan|inf|non-?finite|not finite)\b", re.IGNORECASE)


def loader_killed(evidence: Evidence) -> Explanation | None:
    """Explain a loader worker that died while its rank waited for others."""
    failure = evidence.failure
    rank = None if failure is None or failure.kind != "peer" else evidence.rank(failure.rank)
    error = {} if rank is None or rank.error is None else rank.error
    if rank is None or not re.search(_LOADER_KILLED.words, str(error.get("message", ""))):
        return None
    return Explanation(
        cause=_LOADER_KILLED.cause,
        rank=rank.rank,
        summary=_LOADER_KILLED.means.format(rank=rank.rank),
        evidence=(_first_line(error),),
        fix=_LOADER_KILLED.fix,
    )


def known_error(evidence: Evidence) -> Explanation | None:
    """Explain an error that is known by its class or its text."""
    rank, error = _raised(evidence)
    if rank is None:
        return None
    kind, message = str(error.get("type", "")), str(error.get("message", ""))
    text = f"{message}\n{error.get('traceback', '')}"
    for known in _ERRORS:
        if known.kind and not re.search(known.kind, kind):
            continue
        # Only the message is searched, because a traceback quotes lines of the script.
        found = re.search(known.words, f"{kind}: {message}" if known.words else kind)
        if found is None and known.words:
            found = re.search(rf"^\w[\w.]*(Error|Exception)?: .*({known.words})", text, re.MULTILINE)
        if found is None:
            continue
        return Explanation(
            cause=known.cause,
            rank=rank.rank,
            summary=known.means.format(rank=rank.rank),
            evidence=(_first_line(error), *_details(known.cause, rank, evidence)),
            fix=str(error.get("advice") or known.fix),
            told=bool(error.get("advice")),
        )
    return None


def not_finite_error(evidence: Evidence) -> Explanation | None:
    """Explain a value that is not finite, found by the script on one rank."""
    rank, error = _raised(evidence)
    if rank is None or not _NOT_FINITE.search(f"{error.get('type')} {error.get('message')}"):
        return None
    first = [each for each in evidence.ranks if each.not_finite]
    source = min(first, key=lambda each: each.not_finite, default=rank)
    seen = f"its own gradients were not finite in step {source.not_finite}" if first else _first_line(error)
    return Explanation(
        cause="not-finite",
        rank=source.rank,
        summary=f"a value was not finite, first on rank {source.rank}",
        evidence=(seen,),
        fix="look at the samples of that rank in that step; "
        "torch.autograd.set_detect_anomaly(True) shows the line",
    )


def refused(evidence: Evidence) -> Explanation | None:
    """Explain an error that ronde raised for the user."""
    failure = evidence.failure
    if failure is None or failure.kind != "ronde":
        return None
    rank = evidence.rank(failure.rank)
    error: Mapping[str, Any] = {} if rank is None or rank.error is None else rank.error
    return Explanation(
        cause="refused", rank=failure.rank, summary=_first_line({**error, "type": "ronde"}), told=True
    )


def script_error(evidence: Evidence) -> Explanation | None:
    """Explain any other error of the script."""
    rank, error = _raised(evidence)
    if rank is None:
        return None
    alike = [
        each.rank
        for each in evidence.ranks
        if each.error is not None and each.error.get("message") == error.get("message")
    ]
    everywhere = len(alike) == len(evidence.ranks) > 1
    return Explanation(
        cause="script-error",
        rank=None if everywhere else rank.rank,
        summary=f"the script raised {_first_line(error)}" + ("" if everywhere else f" on rank {rank.rank}"),
        fix="its traceback shows the line",
        told=True,
    )


def _raised(evidence: Evidence) -> tuple[RankEvidence | None, Mapping[str, Any]]:
    """Return the first rank with an error of the script, and the error."""
    failure = evidence.failure
    rank = None if failure is None or failure.kind != "script" else evidence.rank(failure.rank)
    return (None, {}) if rank is None or rank.error is None else (rank, rank.error)


def _first_line(error: Mapping[str, Any]) -> str:
    lines = str(error.get("message", "")).splitlines() or [""]
    return f"{error.get('type')}: {lines[0]}"


def _details(cause: str, rank: RankEvidence, evidence: Evidence) -> tuple[str, ...]:
    host, process = evidence.host_of(rank), rank.process
    if cause == "disk-full" and host.disk >= 0:
        return (f"the disk of the run directory has {host.disk >> 20} MiB free",)
    if cause == "shared-memory" and host.shared >= 0:
        return (f"/dev/shm has {host.shared >> 20} MiB free",)
    if cause == "too-many-files" and process.most_files:
        return (f"it may have {process.most_files} open",)
    if cause == "host-memory" and host.memory >= 0:
        return (f"the host has {host.memory >> 20} MiB left",)
    return ()
