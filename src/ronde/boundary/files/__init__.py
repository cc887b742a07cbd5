"""Files: written once by the main rank, seen alike by all."""

from __future__ import annotations

from ronde.boundary.files.mediator import FileMediator
from ronde.boundary.files.meeting import Meeting, StoreMeeting
from ronde.boundary.files.paths import caches

__all__ = ["FileMediator", "Meeting", "StoreMeeting", "caches"]
