"""The explicit form of what `ronde run` does: `ronde.init`, `ronde.prepare`, and who this rank is."""

from __future__ import annotations

import atexit
import os
from typing import Any

from ronde.errors import UsageError
from ronde.launch.rank_config import RankConfig
from ronde.plan import Plan
from ronde.runtime.session import Session

__all__ = ["activate", "init", "is_main", "prepare", "rank", "world_size"]


class _Process:
    """The one session of this process; these functions have no other way to know it."""

    session: Session | None = None


def activate(session: Session) -> None:
    """Make `session` the one that the functions of this module speak of."""
    _Process.session = session


def init(plan: Plan | str | None = None, *, seed: int = 0) -> None:
    """Join the ranks of this run.

    Under `ronde run` the ranks have joined already and this does nothing; under `torchrun` it joins torchrun's
    ranks; in plain python the script is a run of one rank.

    Args:
        plan: the plan of a run that torchrun started; under `ronde run` it must be left out.
        seed: seed of torch, numpy and random, equal on all ranks; used under torchrun.

    Raises:
        UsageError: for a plan where the command line has given one.
    """
    if _Process.session is not None:
        if plan is not None and Plan.parse(str(plan)) != _Process.session.plan:
            raise UsageError(f"this run has the plan {_Process.session.plan}; give `--plan {plan}` to ronde run instead")
        return
    config = _from_torchrun(str(Plan.parse(str(plan or "ddp"))), seed)
    if config is None:
        return
    from ronde.boundary.lockstep import seed_all

    seed_all(seed)
    session = Session(config, Plan.parse(config.plan))
    atexit.register(session.close)
    session.install()
    activate(session)


def _from_torchrun(plan: str, seed: int) -> RankConfig | None:
    raise NotImplementedError


def prepare(*objects: Any) -> Any:
    """Adopt models, optimizers and loaders; returns them as they came, one alone or a tuple.

    Everything is adopted without a word when it is made after `init`; this is for what was made before.
    """
    session = _Process.session
    if session is not None:
        for thing in objects:
            session.adopt(thing)
    return objects[0] if len(objects) == 1 else objects


def rank() -> int:
    """This rank, 0 to `world_size() - 1`."""
    return 0 if _Process.session is None else _Process.session.config.rank


def world_size() -> int:
    """Number of ranks of this run, 1 in plain python."""
    return 1 if _Process.session is None else _Process.session.config.world_size


def is_main() -> bool:
    """Whether this is rank 0, which prints and writes files."""
    return rank() == 0
