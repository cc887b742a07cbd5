"""Files: written once by the main rank, seen alike by all."""

from __future__ import annotations

from ronde.boundary.files.mediator import FileMediator
from ronde.boundary.files.meeting import Meeting, StoreMeeting
from ronde.boundary.files.paths import paths_of_rank

__all__ = ["FileMediator", "Meeting", "StoreMeeting", "paths_of_rank"]
