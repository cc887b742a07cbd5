"""What the main rank's threads keep is there for ranks that are late, and gone when all have left."""

from __future__ import annotations

import os
from pathlib import Path

from boundary.test_files_mediator import LocalComm
from ronde.boundary.files import StoreMeeting
from ronde.boundary.files.keeping import Keeping
from ronde.trace.temporary_folder import TemporaryFolders


def test_the_last_to_leave_removes_it() -> None:
    meeting = StoreMeeting(LocalComm())
    main, *others = (
        Keeping(meeting, rank=rank, world_size=3, temporary=TemporaryFolders()) for rank in range(3)
    )
    for last in (main, others[1]):  # the ranks' files are mediated anew
        Path(place := main.place("file")).touch()
        folder = os.path.dirname(place)
        ranks = [rank for rank in (main, *others) if rank is not last]
        for rank in ranks:
            rank.leave()
            assert os.path.exists(place)
        last.leave()
        assert not os.path.exists(folder)


def test_nothing_is_made_where_nothing_is_kept() -> None:
    meeting = StoreMeeting(LocalComm())
    for rank in (1, 0):
        Keeping(meeting, rank=rank, world_size=2, temporary=TemporaryFolders()).leave()
    assert meeting.told("left 0 0") is None
