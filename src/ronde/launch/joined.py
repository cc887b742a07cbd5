"""Find or start the store at which ranks meet that another launcher has started."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from ronde.cluster.environment import ClusterEnvironment
from ronde.cluster.reach import candidates, is_this_host, listen_everywhere
from ronde.errors import LaunchError
from ronde.launch.store_process import start_store

__all__ = ["find_store"]

# How long ranks of other hosts look for rank 0's word in the run directory.
_MEETING_S = 60.0
_LINGER_S = 3.0


def find_store(place: ClusterEnvironment, meeting: Path, log: Path) -> tuple[str, int]:
    """Address and port of the store; rank 0's call starts it, in a process that ends shortly after rank 0.

    Args:
        log: where the store's process writes what it has to say.
        meeting: a file that all hosts see, for a launcher that does not tell where rank 0 is.

    Raises:
        LaunchError: the port is held, or rank 0 is nowhere to be found.
    """
    if place.agent_store:
        return place.master_address, place.master_port
    if place.rank:
        return (place.master_address, place.master_port) if place.master_address else _await(place, meeting)
    if place.master_address and not is_this_host(place.master_address):
        raise LaunchError(
            f"MASTER_ADDR={place.master_address} is to be the host of rank 0, which is "
            f"{socket.gethostname()}; set it to an address of that host, or unset it"
        )
    try:
        listener = listen_everywhere(place.master_port)
    except OSError as error:
        raise LaunchError(
            f"port {place.master_port}, where the ranks of this job are to meet, cannot be had "
            f"({os.strerror(error.errno or 0)}); choose another for all of them: MASTER_PORT=N"
        ) from None
    with listener:
        start_store(listener, log, linger=_LINGER_S)
        port = listener.getsockname()[1]
    if place.master_address:
        return place.master_address, port
    address = candidates(["192.0.2.1"])[0]
    _write(meeting, f"{address} {port}\n")
    return address, port


def _await(place: ClusterEnvironment, meeting: Path) -> tuple[str, int]:
    end = time.monotonic() + _MEETING_S
    while time.monotonic() < end:
        try:
            words = meeting.read_text().split()
        except OSError:
            words = []
        if len(words) == 2:
            return words[0], int(words[1])
        time.sleep(0.1)
    raise LaunchError(
        f"{place.launcher} does not tell rank {place.rank} on {socket.gethostname()} where rank 0 is, and "
        f"{meeting.parent} is not shared with it; pass MASTER_ADDR, the first host's address, to all ranks "
        "(mpirun -x MASTER_ADDR=... or -genv MASTER_ADDR ...), or give a shared --run-dir"
    )


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.rename(path)
    except OSError as error:
        raise LaunchError(
            f"cannot write {path}, where other hosts look for rank 0: {error.strerror}; give another "
            "--run-dir"
        ) from None
