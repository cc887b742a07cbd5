"""Files of a script: written once, by rank 0, and seen by all ranks."""

from __future__ import annotations

from ronde.files.paths import paths_of_rank
from ronde.files.script_files import ScriptFiles
from ronde.files.serializers import OF_ALL_RANKS

__all__ = ["OF_ALL_RANKS", "ScriptFiles", "paths_of_rank"]
