"""Explicit API: `ronde.init`, `ronde.prepare`, and identity of this rank."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from ronde.cluster.environment import ClusterEnvironment
from ronde.errors import UsageError
from ronde.launch.external_launch import check_store, shared_run_id, silence
from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.run_spec import RunSpec
from ronde.patching.patches import Patches
from ronde.plan import Plan, check, read_plan
from ronde.process import seeds
from ronde.process.tensor_hash import number_tensors
from ronde.runtime.recording import start_recording
from ronde.runtime.session import Session
from ronde.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    from ronde.runtime.local_view import LocalView

__all__ = ["activate", "active", "deferred", "init", "is_main", "prepare", "rank", "world_size"]


class _Process:
    """Session of this process, for functions that are not given one."""

    session: Session | LocalView | None = None


def activate(session: Session | LocalView | None) -> None:
    """Set the session that this module's functions use; None removes it."""
    _Process.session = session


def active() -> Session | LocalView | None:
    """The session of this process."""
    return _Process.session


def init(plan: Plan | str | None = None, *, seed: int = 0) -> None:
    """Join the ranks of this run.

    Under `ronde run` the ranks have joined already and this does nothing; under `torchrun` it joins
    torchrun's ranks; in plain python the script is a run of one rank, and no process group is made. From
    here on only rank 0 prints and writes files; what other ranks print goes to their logs in the run
    directory. A second call does nothing.

    Args:
        plan: the plan of a run that torchrun started, such as "zero2,precision=bf16"; None: ddp. Under
            `ronde run` the command line gives it. In plain python it is only checked for its syntax.
        seed: seed of torch, numpy and random, 0 to 2**32 - 1, equal on all ranks; used under torchrun.

    Raises:
        UsageError: the plan differs from the command line's, or another launcher has numbered this process.
        PlanError: the plan is wrong or not available for this number of ranks.
        LaunchError: under a torchrun that does not share its store with the ranks.
    """
    session = _Process.session
    asked = None if plan is None else read_plan(str(plan))
    if session is not None:
        if asked is not None and asked != session.plan:
            raise UsageError(
                f"this run has the plan {session.plan}; give `--plan {asked}` to ronde run instead [R383]"
            )
        return
    place = ClusterEnvironment.detect(os.environ)
    if place is None or place.world_size == 1:
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if asked is not None:
        check(asked, place.world_size, device)
    check_store(place)
    directory = RunDirectory.join(None, shared_run_id(place, os.getppid()), os.environ)
    config = RankConfig(
        run=RunSpec(script=sys.argv[0], plan=str(asked or read_plan("ddp")), seed=seed),
        place=RankPlace(
            rank=place.rank,
            world_size=place.world_size,
            local_rank=place.local_rank,
            local_world_size=place.local_world_size,
            run_dir=str(directory.path),
            store=f"tcp://{place.master_address}:{place.master_port}",
            master_address=place.master_address,
            master_port=place.master_port,
            device=device,
            terminal=os.isatty(0),
        ),
    )
    if config.place.device == "cuda":
        torch.cuda.set_device(place.local_rank)
    if place.rank != 0:
        silence(directory.log(place.rank))
    number_tensors()
    seeds.seed_all(seed)
    entropy = Patches()
    seeds.install(entropy, seed)
    parsed = read_plan(config.run.plan)
    if parsed.in_local_view:
        raise UsageError(
            f"{parsed.item('update')} runs a script in local view from its first line on; start it by "
            f"`ronde run --plan {parsed}`, under torchrun `-m ronde run`, and leave ronde.init() as it "
            "is [R285]"
        )
    session = Session(config, parsed, entropy=entropy)
    atexit.register(session.close)
    session.install()
    activate(session)
    start_recording(config, session.tally, session)
    if session.tally.recorder is not None:
        atexit.register(session.tally.recorder.close)


def deferred() -> AbstractContextManager[None]:
    """Build a model too large for one rank: `with ronde.deferred(): model = Net()`.

    Where the plan cuts parameters (`zero3`, `central`, `tensor`, `pipeline`, `expert`), each layer is cut as
    soon as it becomes part of a larger module, and the remaining ones at the end of the block, so no rank
    ever holds more than its part and two layers. A model that `tensor`, `pipeline` or `expert` cuts is spread
    evenly until its first call. Layers are built in the usual way, on every rank, so they draw the numbers
    that they draw on one device. Later operations on them (`model.apply(init)`, `model.to("cuda")`,
    `load_state_dict`) gathers them one by one. A model on the device `meta` needs no such block: it is cut
    when `to_empty` gives it memory. Under other plans and in plain python this does nothing.

    Returns:
        A context manager for one block; it yields None. All ranks enter it at the same line.
    """
    session = _Process.session
    return nullcontext() if session is None else session.deferred()


def prepare(*objects: Any) -> Any:
    """Adopt models, optimizers and loaders; return them, one alone or a tuple.

    Objects that are made after `init` are adopted automatically; call this for earlier ones. A model gets the
    parameters and buffers of rank 0, in place: a collective, which all ranks call with the same models.
    In plain python nothing happens.

    Args:
        objects: `torch.nn.Module`, `torch.optim.Optimizer` and `torch.utils.data.DataLoader` objects. The
            batch size of a loader stays that of the whole batch.

    Returns:
        The same objects, neither wrapped nor copied. One comes alone, several as a tuple in the given order.

    Raises:
        UsageError: an object is something else.
    """
    session = _Process.session
    if session is not None:
        for thing in objects:
            session.adopt(thing)
    return objects[0] if len(objects) == 1 else objects


def rank() -> int:
    """Return this rank's number, 0 to `world_size() - 1`; 0 in plain python and before `init`.

    A branch on it that calls a model, a loss or `backward` on one rank alone stops the run.
    """
    return 0 if _Process.session is None else _Process.session.config.place.rank


def world_size() -> int:
    """Number of ranks of this run; 1 in plain python and before `init`.

    The batch of a loader, a loss and a learning rate need no division by it.
    """
    return 1 if _Process.session is None else _Process.session.config.place.world_size


def is_main() -> bool:
    """Return whether this is rank 0, which prints and writes files.

    True in plain python.

    `print`, `open` and `torch.save` need no such question: they write once.
    """
    return rank() == 0
