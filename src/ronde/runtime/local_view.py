"""Ranks or replicas of a cut model that train by themselves, and average parameters.

The script reads this rank's own values: its slice of every batch, its loss, its parameters. Rank 0 alone
prints and changes files. On parameter servers ranks do not wait for one another; among ranks they meet to
average.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ronde.batches.slices import LocalSlices
from ronde.comm.process_group import Comm
from ronde.comm.single_rank import SingleRank
from ronde.errors import UsageError
from ronde.files import ScriptFiles, paths_of_rank
from ronde.launch.rank_config import RankConfig
from ronde.launch.rank_environment import run_id_of
from ronde.parallel.servers.local_update import GeoUpdate, LocalUpdate, ServedParameters
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.process.clock import Circumstances
from ronde.runtime import compute_axis, native_scripts, servers, tables, update_axis
from ronde.runtime.account import summarize
from ronde.runtime.groups import join_some, listens_on
from ronde.runtime.memory.meter import MemoryMeter
from ronde.runtime.replica import ModelReplica
from ronde.runtime.traffic import GroupTraffic
from ronde.server.transport.wire import Opcode
from ronde.sync.averaging.protocol import Averaging
from ronde.tensor.context import Context
from ronde.trace.counters import Tally
from ronde.trace.notes import Notes
from ronde.trace.summary import RankSummary
from ronde.trace.temporary_folder import TemporaryFolders

if TYPE_CHECKING:
    from ronde.runtime.checkpointing.checkpoints import Checkpoints
    from ronde.runtime.checkpointing.own_models import OwnModels
    from ronde.runtime.publishing import Publishing
    from ronde.runtime.session import Session
    from ronde.server.transport.client import Client

__all__ = ["LocalView"]

_SEED_STEP = 1_000_003  # between the streams of random numbers of ranks


class LocalView:
    """The layer between the script and a rank that trains by itself.

    Attributes:
        config, plan: configuration and plan of this rank.
        retired: whether the script distributes its work itself, so that ronde keeps out.
        files: mediates files.
        patches: all replacements of functions.
        tally: counts steps, samples and time.
        checkpoints: saves ranks and brings them back; None where nothing is saved.
        averaging: averages parameters with the other ranks; None where servers have them.
        replica: joins this rank to those that have other blocks of its copy of the model; None where each
            rank has a copy of its own.
    """

    def __init__(self, config: RankConfig, plan: Plan, tally: Tally, entropy: Patches) -> None:
        self.config, self.plan = config, plan
        self.retired = False
        self.notes = Notes()
        self.tally, self._entropy = tally, entropy
        self.patches = Patches()
        self._client = servers.connect(config, plan)
        self._paths = paths_of_rank(config.place.run_dir)
        # Averaging without servers, in a separate group.
        ranks = ModelReplica.of(config, plan)
        self._place = ranks.place
        self.averaging = None if plan.is_local else update_axis.join(ranks, plan, self._paths.is_private)
        self.replica = _joined(ranks, plan, tally) if len(ranks.ranks) > 1 else None
        self._meter = MemoryMeter(on_cuda=config.place.device == "cuda", hears_calls=False)
        self._slices = LocalSlices(ranks.place, len(ranks.same), self._deliver)
        self._others = _Apart(config.place.rank, config.place.world_size)
        alone = Comm(
            SingleRank(on_cuda=config.place.device == "cuda"), rank=0, world_size=1, store=dist.HashStore()
        )
        # If the script may be replayed, rank 0's operations on files are identified by their order.
        by_itself = bool(config.run.checkpoint) and config.place.rank == 0
        self.files = ScriptFiles(
            comm=alone if by_itself else self._others,
            paths=self._paths,
            temporary=TemporaryFolders(config.place.temporary, run_id_of(config, os.environ)),
            apart=not by_itself,
        )
        self._context = Context(comm=alone, adopt=lambda tensor: None)
        self._parameters = self._client and ServedParameters(self._client)
        self._update = self._updated_by_servers()
        self._everybody = self._joined_by_all() if config.run.checkpoint else None
        self.checkpoints = None if self._everybody is None else self._saved(self._everybody)
        self._stepped, self._resumed_at = False, 0
        self._publishing = self._published() if config.run.publish and config.place.rank == 0 else None

    def _deliver(self, rows: int | None) -> None:
        if self.replica is None:  # else the loaders of its ranks do so
            self.tally.deliver(0, rows)

    def _joined_by_all(self) -> Comm:
        """Join a group of all ranks without comparison of lines.

        They may meet from different lines of the script.
        """
        config = self.config
        return join_some(config, "saving", listens_on(config), "auto", range(config.place.world_size))

    def _saved(self, everybody: Comm) -> Checkpoints:
        """Create the saving and restoring of each rank's own model."""
        from ronde.runtime.checkpointing.checkpoints import Checkpoints

        made = Checkpoints(
            self.config,
            comm=everybody,
            in_script=self._in_script,
            files=self.files,
            has_gradient=lambda leaf: leaf.grad is not None,
            own=self._own_models(everybody),
            say=self.notes.say,
            on_resumed=self._on_resumed,
        )
        self._slices.whole = lambda: made.by_another
        return made

    def _own_models(self, everybody: Comm) -> OwnModels:
        from ronde.runtime.checkpointing.own_models import AveragedModels, ServedModels

        if self.averaging is not None:
            return AveragedModels(self.averaging)
        assert self._client is not None
        assert self._update is not None
        return ServedModels(everybody, self._client, self._update, self.plan.update.staleness)

    def _in_script(self) -> bool:
        return self._context.on_main_thread()

    def _on_resumed(self, step: int) -> None:
        """Continue with this rank's saved random state, or with a new one."""
        self.tally.go_on_from(step)
        self._resumed_at = step
        self._stepped = self.checkpoints is not None and self.checkpoints.goes_on_alone

    def _published(self) -> Publishing:
        """Make the publisher of this rank's model, and of tables on servers."""
        from ronde.runtime.publishing import Publishing

        return Publishing(self.config, self.plan, around=self.files.unmediated, say=self.notes.say)

    def install(self) -> None:
        patches, plan, client, config = self.patches, self.plan, self._client, self.config
        if self.replica is not None:
            self.replica.install_replica()
        patches.undo(register_optimizer_step_pre_hook(self._before_step).remove)
        if self._parameters is not None and self._update is not None:
            self._parameters.install(patches)
            self._update.install(patches)
        if client is not None:
            tables.install(patches, self._others, plan, self.files.for_itself, client, self.notes.say)
        if self.averaging is not None:
            self._average_blocks(self.averaging)
            update_axis.install(patches, self.averaging, plan)
        patches.undo(register_optimizer_step_post_hook(self._after_step).remove)
        self._slices.install(patches)
        if self.replica is None:
            compute_axis.install_alone(plan, patches, self.notes.say)
        if self._publishing is not None:
            self._publishing.install(patches)
        if self.checkpoints is not None:
            Circumstances(self._known, self._in_script).install(patches)
            self.checkpoints.install(patches)
        native_scripts.install(patches, config, self.retire)
        self.files.install()

    def _known(self, name: str, value: Any) -> Any:
        """Return a reading of the clock, or the one of the resumed run."""
        return value if self.checkpoints is None else self.checkpoints.agreed(name, lambda: value)

    def _average_blocks(self, protocol: Averaging) -> None:
        """Average blocks among replicas; all ranks average at the same steps."""
        if self.replica is not None:
            protocol.held, everybody = self.replica.state.own, self.replica.everybody
            protocol.agreed = lambda yes: everybody.votes([not yes]) == [0]

    def _updated_by_servers(self) -> LocalUpdate | GeoUpdate | None:
        config, update, client, parameters = self.config, self.plan.update, self._client, self._parameters
        if client is None or parameters is None:
            return None
        if update.rule == "geo":
            return GeoUpdate(
                client, parameters, update.every or 1, config.place.rank, config.place.world_size
            )
        return LocalUpdate(self._context, client, parameters, config.place.rank, self.notes.say)

    def _before_step(self, *_: Any) -> None:
        if self.config.place.world_size > 1 and not self._slices.cut and not self._stepped:
            raise UsageError(
                f"{self.plan.item('update')} gives each rank its slice of every batch of a DataLoader, and "
                "this script has trained on none: all ranks would do the same; use a plan that cuts any "
                "batch, such as ps or ddp [R425]"
            )

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self.replica is None:
            self.tally.step(optimizer)
            self._meter.stepped(optimizer)
        if not self._stepped:
            self._stepped = True
            # Dropout on other rows draws other numbers; models were made with the same on all ranks.
            torch.manual_seed(self.config.run.seed + self._place * _SEED_STEP + self._resumed_at)

    def retire(self) -> None:
        """Remove all patches; from here on the script runs without ronde."""
        self.retired = True
        if self.replica is not None and not self.replica.retired:
            self.replica.retire()
        self.files.uninstall()
        self.patches.restore()
        self._entropy.restore()

    def adopt(self, thing: Any) -> None:
        """Adopt an object in a replica; without a replica there is nothing to do."""
        if self.replica is not None:
            self.replica.adopt(thing)

    def deferred(self) -> Any:
        if self.replica is not None:
            return self.replica.deferred()
        return nullcontext()

    def traffic(self) -> GroupTraffic:
        """Return the source of this rank's traffic with others."""
        groups = [] if self.averaging is None else [self.averaging.comm]
        groups += [] if self.replica is None else self.replica.groups.all
        background = self.plan.update.rule == "async-average"  # no rank waits for its thread
        return GroupTraffic(groups, self._client, in_background=background)

    def finish(self) -> None:
        """Finish the script: raise errors that servers sent late, and publish the last version."""
        if self._client is not None:
            self._client.finish()
            self._leave(self._client)  # no rank waits for a step of this one
        if self.checkpoints is not None:
            self.checkpoints.finish()
        if self.averaging is not None:
            self.averaging.finish()
        if self._publishing is not None:
            self._publishing.finish()

    def summary(self) -> RankSummary:
        notes, memory = [*self.notes, *self.files.notes], self._meter.memory()
        if self.replica is not None:
            inside = self.replica.summary()
            notes, memory = [*notes, *inside.notes], inside.memory
        account = ""
        if self.averaging is not None:
            account = f"each rank's own ({self.plan.item('update')}); {self.averaging.account()}"
        return summarize(
            self.config,
            self.tally,
            algorithm=account,
            notes=notes,
            memory=memory,
        )

    def close(self) -> None:
        """Leave the groups: no rank waits for this one any more."""
        self.files.uninstall()
        if self.replica is not None:
            self.replica.close()
        if self.averaging is not None:
            self.averaging.comm.close()
        if self._everybody is not None:
            self._everybody.close()
        if self._client is None:
            return
        self._leave(self._client)
        self._client.close()

    def _leave(self, client: Client) -> None:
        client.wait([client.send(server, Opcode.LEAVE, {}) for server in range(client.servers)])


def _joined(ranks: ModelReplica, plan: Plan, tally: Tally) -> Session:
    from ronde.runtime.session import Session
    from ronde.runtime.session_groups import SessionGroups, join_in_replica

    config, inside = ranks.inside, ranks.plan_inside(plan)
    return Session(config, inside, tally, groups=SessionGroups(config, inside, join_in_replica(ranks)))


class _Apart(Comm):
    """Placeholder for a group of the other ranks, without communication."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(SingleRank(on_cuda=False), rank=rank, world_size=world_size, store=dist.HashStore())
