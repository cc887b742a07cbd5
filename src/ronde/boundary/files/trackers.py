"""Experiment trackers that write through a process of their own: the main rank's run is the only one.

Other ranks get a run that records nothing, but answers to the main rank's names. What a tracker does with
files is its own business on every rank, because it does not do the same on each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ronde.boundary.files.mediation import Mediation
from ronde.boundary.patches import Patches

__all__ = ["patch_wandb"]

_WATCH = (
    "wandb.watch was passed over: its hooks would see one rank's part of every gradient, not the whole; log "
    "parameter.grad after backward instead"
)
_NAMES = ("id", "dir", "project", "entity", "path", "start_time", "disabled")


def patch_wandb(mediation: Mediation, patches: Patches, module: ModuleType) -> None:
    """Make `wandb.init` start a run on the main rank, and a disabled one elsewhere."""
    plain: Callable[..., Any] = vars(module)["init"]
    mediation.trackers = (os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep,)

    def init(*args: Any, **kwargs: Any) -> Any:
        if not mediation.governs():
            return plain(*args, **kwargs)
        runs: list[Any] = []

        def start() -> dict[str, Any]:
            runs.append(plain(*args, **kwargs))
            return {name: getattr(runs[0], name, None) for name in (*_NAMES, "name")}

        names = mediation.meet("wandb.init", "wandb", start).value
        if runs:
            return runs[0]
        with mediation.unmediated():
            run = plain(*args, **{**kwargs, "mode": "disabled", "name": names.pop("name")})
        answers = {name: property(lambda _, value=value: value) for name, value in names.items()}
        kind = type(run)
        run.__class__ = type(kind.__name__, (kind,), answers)
        return run

    def watch(run: Any, *args: Any, **kwargs: Any) -> None:
        if _WATCH not in mediation.notes:
            mediation.notes.append(_WATCH)

    patches.set(module, "init", init)
    patches.set(vars(module)["Run"], "watch", watch)
