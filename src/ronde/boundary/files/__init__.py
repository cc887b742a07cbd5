"""Files: written once by the main rank, seen alike by all."""

from __future__ import annotations

from ronde.boundary.files.mediator import FileMediator
from ronde.boundary.files.meeting import Meeting, StoreMeeting
from ronde.boundary.files.paths import paths_of_rank
from ronde.boundary.files.saving import OF_ALL_RANKS

__all__ = ["OF_ALL_RANKS", "FileMediator", "Meeting", "StoreMeeting", "paths_of_rank"]
