"""The folder for a run's temporary files on this host, which its launcher removes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ronde.trace.temporary_folder import TemporaryFolder

__all__ = ["temporary_folder"]


@contextlib.contextmanager
def temporary_folder(run_id: str) -> Iterator[str]:
    """Inside, ranks have a folder for their temporary files; "" where there is no room for one."""
    try:
        folder = TemporaryFolder.hold(run_id)
    except OSError:
        yield ""
        return
    try:
        yield folder.path
    finally:
        folder.remove()
