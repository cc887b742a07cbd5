"""Experiment trackers with processes or threads of their own: rank 0 alone runs one.

Other ranks get a run of Weights & Biases that records nothing, but has rank 0's names. Its own file
operations are not mediated on any rank, because they differ between ranks. TensorBoard's thread opens its
file repeatedly, at any time: other ranks have records that are dropped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ronde.files.rank_files import RankFiles
from ronde.files.raw_files import Sink
from ronde.patching.late_patches import found_in
from ronde.patching.patches import Patches

__all__ = ["patch_tensorboard", "patch_wandb"]

_WATCH = (
    "wandb.watch was passed over: its hooks would see one rank's part of every gradient, not the whole; log "
    "parameter.grad after backward instead [R320]"
)
_NAMES = ("id", "dir", "project", "entity", "path", "start_time", "disabled")


def patch_wandb(files: RankFiles, patches: Patches, module: ModuleType) -> None:
    """Make `wandb.init` start a run on rank 0, and a disabled one elsewhere."""
    start_run, watch_run = found_in(module, "init"), found_in(module, "Run.watch")
    if start_run is None:
        return
    plain: Callable[..., Any] = start_run[2]
    files.callers.trackers = (os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep,)

    def init(*args: Any, **kwargs: Any) -> Any:
        if not files.callers.in_step():
            return plain(*args, **kwargs)
        runs: list[Any] = []

        def start() -> dict[str, Any]:
            runs.append(plain(*args, **kwargs))
            return {name: getattr(runs[0], name, None) for name in (*_NAMES, "name")}

        names = files.alike("wandb.init", start)
        if runs:
            return runs[0]
        with files.callers.unmediated():
            run = plain(*args, **{**kwargs, "mode": "disabled", "name": names.pop("name")})
        answers = {name: property(lambda _, value=value: value) for name, value in names.items()}
        kind = type(run)
        run.__class__ = type(kind.__name__, (kind,), answers)
        return run

    def watch(run: Any, *args: Any, **kwargs: Any) -> None:
        files.note(_WATCH)

    patches.set(module, "init", init)
    if watch_run is not None:
        patches.set(watch_run[0], "watch", watch)


def patch_tensorboard(files: RankFiles, patches: Patches, module: ModuleType) -> None:
    """Drop the records of every rank but 0."""
    found = found_in(module, "RecordWriter")
    if found is not None and not files.is_zero:
        plain = found[2]
        patches.set(module, "RecordWriter", lambda _: plain(Sink()))
