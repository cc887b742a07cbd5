"""A session: one rank's boundary, reducer and files, joined and installed around a script."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

from ronde.batches.copy_times import copy_seconds
from ronde.batches.from_processes import FromProcesses
from ronde.batches.loader import LoaderEdge
from ronde.batches.loader_meter import LoaderMeter
from ronde.comm.agreement import Agreement
from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.files import ScriptFiles, paths_of_rank
from ronde.launch.rank_config import RankConfig
from ronde.launch.rank_environment import run_id_of
from ronde.modules import (
    batch_norm,
    compiled,
    fast_path,
    recompute,
    recurrent,
    torchscript,
)
from ronde.modules.calls import Calls
from ronde.modules.model_edge import ModelEdge
from ronde.parallel.compute import fused_step
from ronde.parallel.compute.recompute import Inside
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.process import parameter_order, pools
from ronde.process.clock import Circumstances
from ronde.process.console import Console
from ronde.process.signals import HandledSignals
from ronde.process.threads import StartedThreads
from ronde.rng.rank_stream import RankStream
from ronde.runtime import (
    communication_axis,
    compute_axis,
    native_scripts,
    saved_gradients,
    servers,
    sparse_weights,
    tables,
)
from ronde.runtime.account import summarize
from ronde.runtime.backward import Backward
from ronde.runtime.groups import shares_memory, signal_board
from ronde.runtime.memory.meter import MemoryMeter
from ronde.runtime.optimizers import Optimizers
from ronde.runtime.session_groups import SessionGroups, join_in_run
from ronde.runtime.shared_exceptions import SharedExceptions
from ronde.runtime.traffic import GroupTraffic
from ronde.runtime.type_questions import notes_on_types
from ronde.runtime.uncut_batches import why_uncut
from ronde.strategies.assemble import assemble
from ronde.strategies.session_parts import SessionParts
from ronde.strategies.strategies import Strategies
from ronde.sync.finite_check import GradientWatch
from ronde.sync.reducer import Reducer
from ronde.tensor import autograd, loss_scale, rules, tensor_class
from ronde.tensor.context import Context, Region
from ronde.tensor.global_tensor import materialize
from ronde.tensor.rules import losses
from ronde.trace.counters import Tally
from ronde.trace.notes import Notes
from ronde.trace.summary import RankSummary
from ronde.trace.temporary_folder import TemporaryFolders

if TYPE_CHECKING:
    from ronde.runtime.checkpointing.checkpoints import Checkpoints
    from ronde.runtime.publishing import Publishing

__all__ = ["Session"]


class Session:
    """All layers between the script and this rank.

    Args:
        entropy: replacements that made sources of randomness equal on all ranks, to be undone for a native
            script.
        groups: the process groups; None: joins those of all ranks.

    Attributes:
        config, plan: configuration and plan of this rank.
        groups: process groups of the ranks.
        patches: all replacements of functions.
        notes: sentences for the user, to be said at the end.
        tally: counts steps, samples and time.
        context: the ranks of global tensors, and where execution stands.
        calls: state of module calls.
        compression: encoder of gradients; None where they travel uncompressed.
        reducer: averages gradients.
        agreement: values that ranks agree on, such as readings of the clock, or seeds, that would make them
            diverge.
        files: mediates files; `session.files.unmediated()` for ronde's own.
        memory: meter of this rank's memory; holders of state outside of tensors register there.
        everybody: all ranks, in the order of the script; `context.comm` are those among whom batches are cut.
        strategies: carry the plan out for models.
        state: parameters, gradients and optimizer state in shards.
        retired: whether the script distributes its work itself, so that ronde keeps out.
    """

    def __init__(
        self,
        config: RankConfig,
        plan: Plan,
        tally: Tally | None = None,
        entropy: Patches | None = None,
        groups: SessionGroups | None = None,
    ) -> None:
        self.config = config
        self.plan = plan
        self.patches = Patches()
        self.notes = Notes()
        self.tally = tally or Tally()
        self._entropy = entropy or Patches()
        self.retired = False
        paths = paths_of_rank(config.place.run_dir)
        self.groups = groups or SessionGroups(config, plan, join_in_run(config, paths.is_private))
        comm = self.everybody = self.groups.everybody
        self.client = servers.connect(config, plan)
        clock = self.tally.clock
        self.memory = MemoryMeter(on_cuda=config.place.device == "cuda", hears_calls=True)
        self.compression = communication_axis.of_plan(plan, self.groups.reducer, self._parameters_of_leaves)
        self.reducer = Reducer(
            self.groups.reducer,
            plan.bucket_bytes,
            clock,
            None if self.compression is None else self.compression.bucket,
        )
        if self.tally.vitals is not None:
            self.reducer.on_first = GradientWatch(self.tally.vitals.finite)
        self.context = self._context(self.groups.rows)
        self._recompute = compute_axis.recompute(plan, self._inside())
        self.strategies, self._replicas = self._assembled()
        self.state = self.strategies.state
        data, pieces = plan.data, plan.compute.micro_batches
        self.calls = Calls(self.context, self.notes, self.tally, batch_dim=data.batch_dim, pieces=pieces)
        # Each stage of a pipeline has the keys of its own layers.
        self.calls.caches = self.groups.mesh.degree("pipeline") == 1
        self.memory.residents += [self.reducer, *self.state.residents]
        shards = self.state.gradients[0] if self.state.gradients else None
        self._scaling = compute_axis.loss_scaling(
            plan, self.groups.any_rank, shards, self.state.parameters_of_leaves
        )
        self.files = ScriptFiles(
            comm=comm,
            paths=paths,
            whole=materialize,
            shared=config.place.temporary or config.place.run_dir,
            temporary=TemporaryFolders(config.place.temporary, run_id_of(config, os.environ)),
        )
        # Patches of the environment call `_in_step`, which uses `files`; so `files` is created first.
        self._console = Console(
            self.groups.all,
            self.tally,
            self.context.on_main_thread,
            terminal=config.place.terminal,
        )
        copy = copy_seconds if config.place.device != "cpu" else None
        self._meter = LoaderMeter(self.context.on_main_thread, self.groups.waited_ns, copy)
        self.agreement = Agreement(comm)
        self._circumstances = Circumstances(self.agreement, self._in_step)
        self._from_processes = FromProcesses(comm, self.agreement, self._in_step)
        self._started = StartedThreads(self._in_step, self._compare)
        self._signals = HandledSignals(lambda: signal_board(config), lambda: comm.alone, self._in_step)
        self._edge = self._model_edge()
        self._publishing = self._published()
        self.checkpoints = self._saved()
        if (
            config.place.world_size > 1 and config.place.device == "cpu"
        ):  # a CUDA device computes while the host continues
            clock.start(self.groups.waited_ns)

    def _model_edge(self) -> ModelEdge:
        self.calls.must_see = self.strategies.must_see
        edge = ModelEdge(
            self.calls,
            rules.table(),
            self._stream(),
            self.strategies.way,
            self.strategies.around_call,
            cuts=self._cuts_batches(),
            one_row=self.groups.mesh.degree("context") > 1,
            sampled=self.plan.compute.recompute != "none" or self.strategies.cuts_calls,
        )
        if self.strategies.with_loss is not None:
            edge.with_loss = self.strategies.with_loss(self.calls, self._attempt)
        return edge

    def _context(self, rows: Comm) -> Context:
        clock, everybody = self.tally.clock, self.everybody
        context = Context(comm=rows, adopt=self.reducer.adopt, clock=clock, everybody=everybody)
        shared = SharedExceptions(everybody, self.groups.all, context, self._settle)
        context.attempt = shared.attempt
        return context

    def _parameters_of_leaves(self) -> dict[int, int]:
        return self.state.parameters_of_leaves()

    def _settle(self) -> None:
        self.state.settle()

    def _in_step(self) -> bool:
        """Return whether the running code is the script's, on all ranks together."""
        alone = self.everybody.alone  # a debugger's commands are rank 0's own
        reads = self.context.region in (Region.SCRIPT, Region.SAMPLES)
        return not alone and reads and self.files.in_step()

    def _in_script(self) -> bool:
        return self.context.region is Region.SCRIPT and self.context.on_main_thread()

    def _inside_model(self) -> bool:
        return self.context.region in (Region.SHARDED, Region.REPLICATED) and self.context.on_main_thread()

    def _published(self) -> Publishing | None:
        if not self.config.run.publish:
            return None
        from ronde.runtime.publishing import Publishing

        return Publishing(
            self.config,
            self.plan,
            comm=self.everybody,
            in_script=self._in_script,
            inside=lambda: self.context.enter(Region.REPLICATED),
            gathered=self.state.gathered,
            around=self.files.unmediated,
            say=self.notes.say,
        )

    def _saved(self) -> Checkpoints | None:
        if not self.config.run.checkpoint:
            return None
        from ronde.runtime.checkpointing.checkpoints import Checkpoints

        made = Checkpoints(
            self.config,
            comm=self.everybody,
            in_script=self._in_script,
            files=self.files,
            has_gradient=self.state.has_gradient,
            own=self.compression,
            say=self.notes.say,
            on_resumed=self.tally.go_on_from,
        )
        self.agreement.around = made.agreed
        return made

    def _compare(self) -> None:
        self.context.compares = True

    def _cuts_batches(self) -> bool:
        """Return whether to look for batches in calls of models.

        False where all ranks have the whole batch.
        """
        degree = self.groups.mesh.degree("data")
        by_itself = self.config.place.world_size == 1 or self.strategies.cuts_calls
        return by_itself or compute_axis.cuts_batches(self.plan, degree)

    def _assembled(self) -> tuple[Strategies, Context]:
        """Create the strategies of the plan, and the context of its replicas."""
        parts = SessionParts(
            plan=self.plan,
            mesh=self.groups.mesh,
            everybody=self.everybody,
            reducing=self.groups.reducer,
            meet=self.groups.meet,
            context=self.context,
            reducer=self.reducer,
            client=self.client,
            recompute=self._recompute,
            again=self.memory.computed_again,
            note=self.notes.say,
        )
        return assemble(parts), parts.replicas

    def _inside(self) -> Inside:
        """Create the context of a module that is called."""
        again, draws = self.memory.computed_again, lambda: not self.calls.draws_nothing
        return Inside(self._inside_model, self._in_script, self.notes.say, again, draws)

    def _stream(self) -> RankStream | None:
        device = torch.device("cuda", 0) if self.config.place.device == "cuda" else torch.device("cpu")
        if self.plan.data.rng_on(device.type) == "global":
            return None
        return RankStream(self.groups.mesh.coordinate(self.config.place.rank, "data"), device, self.notes.say)

    def scheduled(
        self, model: torch.nn.Module, loss_fn: Callable[[Any, Any], torch.Tensor]
    ) -> Callable[[Any, Any, Any], torch.Tensor] | None:
        """Return a function with forward and backward in the plan's schedule, or None.

        It computes the loss of arguments and a target. None where the script's own calls follow the schedule.
        """
        return self.strategies.schedule(model, loss_fn, self._attempt)

    def _attempt(self) -> Callable[[], object]:
        """Begin work that may be repeated; the returned function discards its journal entries."""
        return (lambda: None) if self.checkpoints is None else self.checkpoints.attempt()

    def install(self) -> None:
        """Put the boundary around everything that a script may touch.

        Tensors and models first, then the script's surroundings, files last: a layer that is installed
        later runs first, and reads and writes of ronde's own code on the way must not be mediated.
        """
        self.install_boundary()
        self._console.install(self.patches)
        self._circumstances.install(self.patches)
        self._started.install(self.patches)
        if self.config.place.world_size > 1:
            self._from_processes.install(self.patches)
            pools.install(self.patches)
        if shares_memory(self.config):
            self._signals.install(self.patches)
        self.files.install()

    def install_replica(self) -> None:
        """Install the boundary for a replica: without files, console and signals."""
        self.install_boundary()
        self._circumstances.install(self.patches)
        self._started.install(self.patches)

    def install_boundary(self) -> None:
        """Install the boundary without files and the script's surroundings.

        A function that is replaced twice runs the later replacement first, and that calls the earlier. So
        layers of tensors lie below layers of modules, and these below layers of whole steps.
        """
        self._install_tensors()
        self._install_modules()
        self._install_steps()
        if self._publishing is not None:
            self._publishing.install(self.patches)
        if self.checkpoints is not None:
            self.checkpoints.install(self.patches)
        # Installed last, because it undoes all of these.
        native_scripts.install(self.patches, self.config, self.retire)

    def _install_tensors(self) -> None:
        patches, context = self.patches, self.context
        autograd.install(patches, context, self._replicas, self._signals.before_backward)
        tensor_class.install(patches)
        losses.install(patches)
        loss_scale.install(patches, context)

    def _install_modules(self) -> None:
        patches, context, say = self.patches, self.context, self.notes.say
        tables.install(patches, context.comm, self.plan, self.files.for_itself, self.client, say)
        rows = self.strategies.rows
        sparse_weights.install(patches, self.reducer.adopt_sparse, None if rows is None else rows.look_up)
        batch_norm.install(patches, context)
        fast_path.install(patches, context, self.calls.pieces)
        recurrent.install(patches)
        recompute.install(patches, context)
        compiled.install(patches, context, say)
        torchscript.install(patches)
        data, unmediated = self.plan.data, self.files.for_itself
        said = say if self._cuts_batches() else lambda note: None
        LoaderEdge(context, rules.table(), data, self.tally, said, unmediated).install(patches)
        self._meter.install(patches)
        # Below the model edge, where a plan works on this rank's rows.
        if self._recompute is not None:
            self._recompute.install(patches)
        self.calls.on_evaluation = self._signals.before_evaluation
        self._edge.install(patches)

    def _install_steps(self) -> None:
        patches, context = self.patches, self.context
        backward = Backward(
            self.calls,
            self.reducer,
            self.strategies,
            self.memory,
            self._scaling,
            self._signals.before_backward,
        )
        backward.install(patches)
        parameter_order.install(patches, self.everybody, context.on_main_thread, self._in_script)
        optimizers = Optimizers(
            context, self.reducer, self.strategies, self.tally, self.memory, self._signals
        )
        optimizers.install(patches)
        self._install_memory()
        fused_step.install(patches)
        if self.compression is not None:
            communication_axis.install(patches, self.compression)
        # Above the optimizers: a sharded step begins when all ranks have their shards.
        self.strategies.install(patches)
        saved_gradients.install(patches, self.reducer.memory.holds)
        # Above the model edge: a model is compiled, or runs in lower precision, whether it is cut or not.
        compute_axis.install_around(self.plan, patches, in_script=self._in_script, note=self.notes.say)
        if self._scaling is not None:
            context.loss_is_scaled = True
            self._scaling.install(patches)

    def _install_memory(self) -> None:
        def on_change(armed: bool) -> None:
            self.calls.on_call = self.memory.called if armed else None
            self.reducer.on_finish = self.memory.count if armed else None

        self.memory.on_change = on_change
        on_change(self.memory.armed)

    def uninstall_boundary(self) -> None:
        """Remove the patches; sharded state stays sharded."""
        self.state.uninstall()
        self.patches.restore()

    def deferred(self) -> AbstractContextManager[None]:
        """Cut models as they are built inside the block, if the plan cuts parameters."""
        return nullcontext() if self.retired else self.state.deferred()

    def adopt(self, thing: Any) -> None:
        """Take over a model, optimizer or loader that was made before the session.

        Parameters and buffers of a model become those of rank 0.

        Raises:
            UsageError: the object is something else.
        """
        if isinstance(thing, Optimizer):
            self.reducer.adopt_all(thing)
        elif isinstance(thing, torch.nn.Module):
            for value in (*thing.parameters(), *thing.buffers()):
                if not is_lazy(value):
                    self.everybody.broadcast(value.data)
            for parameter in thing.parameters():
                self.reducer.adopt(parameter)
        elif not isinstance(thing, DataLoader):
            raise UsageError(
                f"ronde.prepare takes models, optimizers and loaders, not a {type(thing).__name__}; "
                f"pass the torch.nn.Module, torch.optim.Optimizer or DataLoader itself [R383]"
            )

    def retire(self) -> None:
        """Remove all patches; from here on the script runs without ronde."""
        self.retired = True
        self.state.release()
        self.files.uninstall()
        self._circumstances.uninstall()
        self._signals.uninstall()
        self.patches.restore()
        self._entropy.restore()

    def finish(self) -> None:
        """Finish the script on all ranks: publish the final version."""
        if self.checkpoints is not None:
            self.checkpoints.finish()
        if self._publishing is not None:
            self._publishing.finish()

    def summary(self) -> RankSummary:
        """Summarize this rank's time, with notes for the user."""
        self._edge.conclude()
        if self.client is not None:
            self.client.finish()
        notes = [*self.notes, *self.files.notes, *self.strategies.notes()]
        notes += self.groups.notes
        rows = self.strategies.rows
        spread = rows is not None and rows.has_spread_rows
        unspread = tables.why_none_is_spread(self.plan, self.config.place.world_size, spread=spread)
        notes += [unspread] if unspread else []
        cuts = compute_axis.cuts_batches(self.plan, self.groups.mesh.degree("data"))
        notes += notes_on_types(
            parameters=any(each.are_there for each in self.state.parameters), tensors=cuts
        )
        if cuts and not self.tally.sharded and not self.calls.uncut:
            notes.append(why_uncut(self.calls, self._started.functions))
        notes += self._meter.advice(self.config.place.local_world_size, self.tally.begun_ns)
        return summarize(
            self.config,
            self.tally,
            algorithm=communication_axis.account(self.plan, self.compression) or self.groups.algorithm,
            notes=notes,
            memory=self.memory.memory(),
        )

    def traffic(self) -> GroupTraffic:
        """Return the source of this rank's traffic with others."""
        return GroupTraffic(self.groups.all, self.client)

    def close(self) -> None:
        """Leave the ranks' groups; the last thing that a rank does."""
        self.files.uninstall()
        self._circumstances.uninstall()
        self._signals.uninstall()
        self.groups.close()
