"""What ways through ronde's `Comm` have in common."""

from __future__ import annotations

from datetime import timedelta

from ronde import __version__
from ronde.bench.collectives.way import Meeting
from ronde.comm.joining import join
from ronde.comm.process_group import Comm
from ronde.comm.topology import Place

__all__ = ["CommWay", "join_comm"]


class CommWay:
    """A rank of one of ronde's own groups."""

    version = f"ronde {__version__}"

    def __init__(self, comm: Comm) -> None:
        self.rank = comm.rank
        self.comm = comm

    def barrier(self) -> None:
        self.comm.barrier()

    def close(self) -> None:
        self.comm.close()


def join_comm(meeting: Meeting) -> Comm:
    """The group that `ronde run` makes on one host."""
    assert meeting.rank is not None
    return join(
        f"file://{meeting.folder / 'store'}",
        name="bench",
        place=Place(meeting.rank, meeting.ranks, meeting.rank, meeting.ranks),
        device="cpu",
        timeout=timedelta(seconds=meeting.timeout),
        host="127.0.0.1",
        algorithm=meeting.algorithm,
    )
