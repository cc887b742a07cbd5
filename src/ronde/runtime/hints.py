"""What a user can do about an error that running on many ranks has to do with; said behind its traceback."""

from __future__ import annotations

import os

from ronde.launch.rank_config import RankConfig
from ronde.runtime.torchrun import torchrun_environment

__all__ = ["hint"]


def hint(error: BaseException, config: RankConfig) -> str:
    """One sentence, "" where the error says it all."""
    text = str(error)
    if isinstance(error, KeyError) and error.args and error.args[0] in torchrun_environment(config):
        return (
            f"the script reads {error.args[0]} itself: it is written for many ranks already. Run it with "
            "`ronde run --native`, or leave the ranks out of the script"
        )
    if "unable to allocate shared memory" in text or "out of shared memory" in text:
        return (
            f"shared memory{_size('/dev/shm')} is too small for the batches that loader workers hand over on "
            f"{config.local_world_size} ranks: make it larger (docker run --shm-size=8g), or use a smaller "
            "num_workers"
        )
    if "invalid device ordinal" in text and config.device == "cuda":
        return 'each rank sees one CUDA device, its own: write "cuda" or "cuda:0" instead of another number'
    return ""


def _size(folder: str) -> str:
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    return f" ({folder}, {found.f_blocks * found.f_frsize / 2**20:.0f} MB)"
