"""Options of `ronde run` for checkpoints, resuming and seeds."""

from __future__ import annotations

import os
from pathlib import Path

from ronde.cluster.environment import ClusterEnvironment
from ronde.errors import UsageError
from ronde.plan import Plan

__all__ = ["check_restarts", "checkpoint_place", "resumed_seed", "seed_of_checkpoint", "seed_of_run"]


def check_restarts(
    restarts: int, checkpoint: str | None, place: ClusterEnvironment | None, servers: str | None
) -> None:
    """Raise `UsageError` if ranks cannot be restarted.

    Args:
        servers: endpoints of servers started by hand, if a restart is possible; else empty.
    """
    if restarts and (checkpoint is None or place is not None):
        why = "needs --checkpoint DIR" if checkpoint is None else "is torchrun's: use its --max-restarts"
        raise UsageError(f"--restarts {restarts} {why}")
    if servers:
        raise UsageError(
            f"--servers {servers} were started by hand, and keep their state when ranks are restarted; give "
            "--servers N, or leave out --restarts, --min-ranks and --max-ranks [R500]"
        )


def checkpoint_place(given: str | None) -> str:
    if not given:
        return ""
    return given if "://" in given else os.path.abspath(given)


def seed_of_checkpoint(place: str | None, *, resume: bool, native: bool, plan: str) -> int | None:
    """Return the seed of the checkpointed run, or None for a new run.

    Raises:
        UsageError: the directory holds a checkpoint without --resume, only damaged ones, or the plan cannot
            be saved.
    """
    if place is None:
        if resume:
            raise UsageError("--resume needs --checkpoint DIR, where the run was saved [R500]")
        return None
    if native:
        raise UsageError("--checkpoint needs a script that ronde distributes; leave out --native [R500]")
    parsed = Plan.parse(plan)
    if parsed.in_local_view and parsed.mesh.cuts_models is not None:
        raise UsageError(
            f"--checkpoint cannot save a cut model under {parsed.item('update')}, where each replica trains "
            f"by itself; leave out {parsed.item(parsed.mesh.cuts_models)}, or take update=sync [R501]"
        )
    from ronde.checkpoint.remote_checkpoints import RemoteCheckpoints, is_url
    from ronde.trace.checkpoint_manifest import checkpoints_in, latest_manifest

    found = RemoteCheckpoints(place).latest() if is_url(place) else latest_manifest(Path(place))
    if found is None:
        if not is_url(place) and any(checkpoints_in(Path(place))):
            raise UsageError(f"no checkpoint in {place} is whole; choose another folder to begin anew [R513]")
        return None  # the first start, too, may say --resume
    if not resume:
        raise UsageError(
            f"--checkpoint {place} has a checkpoint of step {found.step}: go on from it by --resume, or "
            "choose another folder [R502]"
        )
    return found.seed


def resumed_seed(place: str | None, saved: int, *, asked: int | None) -> int:
    """Return the seed of a resumed run; `asked` may only repeat it."""
    if asked not in (None, saved):
        raise UsageError(
            f"--seed {asked}: the checkpoint in {place} is of a run with seed {saved}; leave it out [R500]"
        )
    return saved


def seed_of_run(seed: int | None, place: ClusterEnvironment | None) -> int:
    if seed is not None:
        return seed
    if place is None:
        return int.from_bytes(os.urandom(4), "big") % 2**31
    from ronde.launch.external_launch import shared_seed

    return shared_seed(place)
