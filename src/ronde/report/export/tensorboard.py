"""A run as event files of TensorBoard."""

from __future__ import annotations

from pathlib import Path

from ronde.errors import UsageError
from ronde.report.export.scalars import scalars_of
from ronde.report.run import RunState

__all__ = ["write_tensorboard"]


def write_tensorboard(run: RunState, folder: Path) -> None:
    """Write the curves into a folder named after the run.

    Raises:
        UsageError: tensorboard is missing.
        OSError: the files cannot be written.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "--tensorboard needs tensorboard, which is not installed: pip install 'ronde[tensorboard]' [R619]"
        ) from None
    with SummaryWriter(str(folder / run.path.name)) as writer:
        for name, value in run.start.items():
            writer.add_text(f"run/{name}", str(value))
        for each in scalars_of(run):
            writer.add_scalar(each.name, each.value, each.step, each.time)
