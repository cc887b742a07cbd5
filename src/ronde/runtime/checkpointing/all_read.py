"""Check that all ranks resume from one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from ronde.errors import UsageError

__all__ = ["check_all_read"]


def check_all_read(folder: str, found: Sequence[tuple[int, str]]) -> None:
    """Check that all ranks have found the same checkpoint.

    Args:
        found: step of each rank's checkpoint, -1 for none, and the name of its host.

    Raises:
        UsageError: ranks differ; all of them raise it.
    """
    step, host = found[0]
    for rank, (other, elsewhere) in enumerate(found):
        if other != step:
            raise UsageError(
                f"--checkpoint {folder}: rank 0 on {host} {_finds(step)}, rank {rank} on {elsewhere} "
                f"{_finds(other)}; give a folder that all hosts see, or a URL such as s3://bucket/run, or "
                "copy the folder to all hosts [R512]"
            )


def _finds(step: int) -> str:
    return f"finds that of step {step}" if step >= 0 else "finds no checkpoint"
