"""What other ranks serialize goes nowhere, and takes no device with it."""

from __future__ import annotations

import os
from pathlib import Path

from ronde.boundary.files.private_copy import discard


def test_a_writer_that_renames_onto_its_target_replaces_nothing_of_the_systems() -> None:
    seen: list[Path] = []

    def write(path: str) -> None:
        seen.append(Path(path))
        beside = Path(path + ".part")
        beside.write_bytes(b"tensors")
        os.replace(beside, path)

    discard(write)
    assert not seen[0].parent.exists()
    assert Path(os.devnull).is_char_device()
