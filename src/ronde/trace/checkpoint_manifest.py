"""Manifest of a checkpoint: facts that can be read without loading it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "MANIFEST",
    "CheckpointManifest",
    "checkpoint_name",
    "checkpoints_in",
    "is_checkpoint",
    "latest_manifest",
]

#: Its file in the folder of a checkpoint, written last.
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")
_FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointManifest:
    """Facts about a checkpoint.

    Attributes:
        step: optimizer steps that the script had made.
        entries, journal_bytes: entries and bytes of the journal that belong to it.
        boundary: next operation of the script: `call` of a model, or taking the `next` batch.
        seed, plan, ranks, script, arguments: of the run.
        script_digest: SHA-256 of the script's text; "" where it is not known.
        digest: SHA-256 of the state.
        held_up: seconds for which training was paused.
        state_bytes: size of all tensors of the state.
        time: seconds since 1970 at which it was cut.
    """

    step: int
    entries: int
    journal_bytes: int
    boundary: str
    seed: int
    plan: str
    ranks: int
    script: str
    arguments: tuple[str, ...] = ()
    script_digest: str = ""
    digest: str = ""
    held_up: float = 0.0
    state_bytes: int = 0
    time: float = 0.0
    format: int = _FORMAT

    @classmethod
    def read(cls, folder: Path) -> CheckpointManifest:
        """Read the manifest of one checkpoint.

        Raises:
            OSError, ValueError: a manifest is missing or damaged.
        """
        return cls.of_text((folder / MANIFEST).read_text())

    @classmethod
    def of_text(cls, text: str) -> CheckpointManifest:
        """Parse the text of a manifest.

        Raises:
            ValueError: the text is damaged.
        """
        fields = json.loads(text)
        try:
            fields["arguments"] = tuple(fields["arguments"])
            manifest = cls(**fields)
        except (TypeError, KeyError) as error:
            raise ValueError(str(error)) from None
        if manifest.format != _FORMAT:
            raise ValueError(f"its format is {manifest.format}, and this ronde reads {_FORMAT} [R511]")
        return manifest


def latest_manifest(folder: Path) -> CheckpointManifest | None:
    """Read the newest manifest of a folder; None without one."""
    for _, place in checkpoints_in(folder):
        try:
            return CheckpointManifest.read(place)
        except (OSError, ValueError):
            continue
    return None


def checkpoint_name(step: int) -> str:
    """Return the name of a checkpoint's folder.

    >>> checkpoint_name(300)
    'step-00000300'
    """
    return f"step-{step:08d}"


def is_checkpoint(name: str) -> bool:
    """Return whether a folder of this name is a checkpoint."""
    return _NAME.fullmatch(name) is not None


def checkpoints_in(folder: Path) -> Iterator[tuple[int, Path]]:
    """List checkpoints, the newest first."""
    entries = folder.iterdir() if folder.is_dir() else ()
    named = [(int(match[1]), entry) for entry in entries if (match := _NAME.fullmatch(entry.name))]
    yield from sorted(named, reverse=True)
