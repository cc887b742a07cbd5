"""A session: one rank's boundary, reducer and files, joined and installed around a script."""

from __future__ import annotations

import os
import weakref
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader

from ronde.boundary import (
    autograd,
    batch_norm,
    branches,
    compiled,
    fast_path,
    loss_scale,
    own_backward,
    recompute,
    recurrent,
    rules,
    subclassing,
    torchscript,
)
from ronde.boundary.circumstances import in_order, shared_blocks
from ronde.boundary.circumstances.agreement import Agreement
from ronde.boundary.circumstances.clock_and_seeds import Circumstances
from ronde.boundary.circumstances.from_processes import FromProcesses
from ronde.boundary.circumstances.started import Started
from ronde.boundary.console import Console
from ronde.boundary.context import Context, Region
from ronde.boundary.files import FileMediator, StoreMeeting, paths_of_rank
from ronde.boundary.loader import LoaderEdge
from ronde.boundary.model_edge import ModelEdge
from ronde.boundary.modes_first import modes_first
from ronde.boundary.parameter_order import ParameterOrder
from ronde.boundary.patches import Patches
from ronde.boundary.randomness.rank_stream import RankStream
from ronde.boundary.rules import losses
from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.launch.rank_config import RankConfig
from ronde.launch.rank_environment import RUN_ID_KEY
from ronde.parallel import one_pass
from ronde.parallel.recompute import Inside
from ronde.plan import Plan
from ronde.plan.communication import Algorithm
from ronde.runtime import compute, saved_gradients, signal_steps, take_over
from ronde.runtime.account import summarize
from ronde.runtime.backward import Backward
from ronde.runtime.groups import join_group, listens_on, shares_memory, told_count
from ronde.runtime.memory_meter import MemoryMeter
from ronde.runtime.sharding import Sharding
from ronde.runtime.signal_steps import handled_signals
from ronde.runtime.sum_of_parameters import sum_of_parameters
from ronde.runtime.type_questions import questions_of_script
from ronde.runtime.uncut import why_uncut
from ronde.sync.reducer import Reducer
from ronde.trace.step_clock import Part
from ronde.trace.summary import RankSummary
from ronde.trace.tally import Tally
from ronde.trace.temporary_folder import TemporaryFolders

__all__ = ["Session"]


class Session:
    """Everything that stands between the script and this rank.

    Args:
        entropy: what made sources of randomness equal on all ranks, to be undone for a native script.

    Attributes:
        config, plan: what this rank was told.
        context: the boundary's state.
        reducer: averages gradients.
        agreement: what ranks go by where the clock or a seed would take them apart.
        files: mediates files; `session.files.unmediated()` for ronde's own.
        tally: counts steps, samples and time.
        memory: measures this rank's memory; what holds state elsewhere than in tensors is told to it.
        retired: the script distributes its work itself, and ronde keeps out.
    """

    def __init__(
        self, config: RankConfig, plan: Plan, tally: Tally | None = None, entropy: Patches | None = None
    ) -> None:
        self.config = config
        self.plan = plan
        self.patches = Patches()
        self.tally = tally or Tally()
        self._entropy = entropy or Patches()
        self.retired = False
        self._paths = paths_of_rank(config.run_dir)
        host = listens_on(config)
        boundary_comm = self._join("boundary", host, "auto")
        reducer_comm = self._join("reducer", host, plan.communication.algorithm)
        self._groups = [boundary_comm, reducer_comm]
        self._sharding = Sharding(plan, reducer_comm)
        clock = self.tally.clock
        self.reducer = Reducer(reducer_comm, plan.bucket_bytes, self._sharding.gradients, clock)
        self.context = Context(
            comm=boundary_comm,
            batch_dim=plan.data.batch_dim,
            adopt=self.reducer.adopt,
            tally=self.tally,
            pieces=plan.compute.micro_batches,
        )
        self._sharding.bind(self.context)
        self.memory = MemoryMeter(on_cuda=config.device == "cuda", hears_calls=True)
        self.memory.residents += [self.reducer, *self._sharding.residents]
        self._scaling = compute.loss_scaling(plan, self._any_rank, self._sharding.gradients)
        self._meeting = StoreMeeting(boundary_comm)
        self.files = FileMediator(
            meeting=self._meeting,
            rank=config.rank,
            world_size=config.world_size,
            paths=self._paths,
            told=told_count(config),
            temporary=TemporaryFolders(config.temporary, _run_id(config)),
        )
        self._console = Console(self.context, self._groups, self._meeting, terminal=config.terminal)
        self._waited_before = self._waited_ns()
        if config.world_size > 1 and config.device == "cpu":  # a CUDA device computes while the host goes on
            clock.start(self._waited_ns)
        self.agreement = Agreement(boundary_comm)
        self._circumstances = Circumstances(self.agreement, self._in_step, self._paths.is_private)
        self._from_processes = FromProcesses(boundary_comm, self.agreement, self._in_step)
        self._started = Started(self.context, self._in_step)
        self._signals = handled_signals(config, self.context, self._in_step)
        self._handles: list[Any] = []
        self._conclude: Callable[[], None] = lambda: None

    def _in_step(self) -> bool:
        alone = self.context.comm.alone  # a debugger's commands are the main rank's own
        return not alone and self.context.region is Region.SCRIPT and self.files.in_step()

    def _join(self, name: str, host: str | None, algorithm: Algorithm) -> Comm:
        return join_group(self.config, name, host, algorithm, self._paths.is_private)

    def install(self) -> None:
        """Put the boundary around everything that a script may touch."""
        self.install_boundary()
        self._console.install(self.patches)
        self._circumstances.install(self.patches)
        self._started.install(self.patches)
        if self.config.world_size > 1:
            self._from_processes.install(self.patches)
            in_order.install(self.patches)
        if self.config.local_world_size > 1:
            shared_blocks.install(self.patches)
        if shares_memory(self.config):
            signal_steps.install(self._signals, self.patches, self.context)
        self.files.install()

    def install_boundary(self) -> None:
        """All of it but the mediation of files."""
        table = rules.table()
        autograd.install(self.patches, self.context)
        subclassing.install(self.patches)
        batch_norm.install(self.patches, self.context)
        fast_path.install(self.patches, self.context)
        recurrent.install(self.patches)
        recompute.install(self.patches, self.context)
        own_backward.install(self.patches, self.context)
        losses.install(self.patches, table)
        compiled.install(self.patches, self.context)
        torchscript.install(self.patches)
        branches.install(self.patches)
        loss_scale.install(self.patches, self.context)
        LoaderEdge(self.context, table, self.plan.data.loading, self.files.unmediated).install(self.patches)
        note, again, in_script = self.context.note, self.memory.computed_again, self._in_script
        inside = Inside(self._inside_model, in_script, note, again, lambda: not self.context.draws_nothing)
        compute.install_inside(self.plan, self.patches, inside)
        way = compute.way(self.plan, again)
        edge = ModelEdge(self.context, table, self._stream(), way, self._sharding.calling)
        edge.install(self.patches)
        self._conclude = edge.conclude
        backward = Backward(self.context, self.reducer, self._sharding, self.memory, self._scaling)
        backward.install(self.patches)
        self._install_optimizers()
        self._install_memory()
        one_pass.install(self.patches)
        self._sharding.install(self.patches, self.context)
        self._install_gradient_hooks()
        saved_gradients.install(self.patches, self.reducer.memory.holds)
        compute.install_around(self.plan, self.patches, in_script=in_script, note=note)
        if self._scaling is not None:
            self.context.loss_is_scaled = True
            self._handles += self._scaling.install(self.patches)
        take_over.install(self.patches, self.config, self.retire)

    def _in_script(self) -> bool:
        return self.context.region is Region.SCRIPT and self.context.on_main_thread()

    def _inside_model(self) -> bool:
        return self.context.region in (Region.SHARDED, Region.REPLICATED) and self.context.on_main_thread()

    def uninstall_boundary(self) -> None:
        """Take the patches back; what lies in parts stays so."""
        self._sharding.uninstall()
        self.patches.restore()

    def _stream(self) -> RankStream | None:
        device = torch.device("cuda", 0) if self.config.device == "cuda" else torch.device("cpu")
        if self.plan.data.rng_on(device.type) == "global":
            return None
        return RankStream(self.config.rank, device, self.context.note)

    def _any_rank(self, answer: bool) -> bool:
        return self.context.comm.votes([answer]) != [0]

    def _install_optimizers(self) -> None:
        plain: Any = Optimizer.add_param_group

        order = ParameterOrder(self.context)
        order.install(self.patches)

        def add_param_group(optimizer: Any, param_group: Any) -> None:
            plain(optimizer, param_group)
            order.agree(optimizer.param_groups[-1])
            self.tally.know(optimizer)
            if self.context.on_main_thread():
                self.reducer.adopt_all(optimizer)

        stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        clock = self.tally.clock

        def before_step(optimizer: Any, *_: Any) -> None:
            if not self.context.on_main_thread():
                return  # every rank trains there what no rank has cut
            before = clock.enter(Part.OWN) if clock.armed else None
            self._signals.before_step()
            self.reducer.adopt_all(optimizer)
            self._sharding.before_step()
            self.tally.begin_step()
            what = f"{type(optimizer).__name__}.step"
            if optimizer not in stepped:
                stepped.add(optimizer)
                self._sharding.note_whole_state(self.context, optimizer)
                what += f" (the first; sum of all parameters {sum_of_parameters(optimizer):.6g})"
            self.context.comm.mark(f"{what}{_rates(optimizer)}")
            if before is not None:
                clock.enter(before)

        def after_step(optimizer: Any, *_: Any) -> None:
            if not self.context.on_main_thread():
                self.tally.step_beside()
                return
            self.tally.step(optimizer)
            self.memory.stepped(optimizer)

        self.patches.set(Optimizer, "add_param_group", add_param_group)
        self._handles.append(register_optimizer_step_pre_hook(before_step))
        self._handles.append(register_optimizer_step_post_hook(after_step))

    def _install_memory(self) -> None:
        def on_change(armed: bool) -> None:
            self.context.on_call = self.memory.called if armed else None
            self.reducer.on_finish = self.memory.count if armed else None

        self.memory.on_change = on_change
        on_change(self.memory.armed)

    def _install_gradient_hooks(self) -> None:
        plain: Any = torch.Tensor.register_post_accumulate_grad_hook

        def register(tensor: Any, hook: Any) -> Any:
            """An optimizer in backward is to see the gradient of the whole batch, not of one rank's rows."""
            if not tensor.requires_grad or not tensor.is_leaf:
                return plain(tensor, hook)  # torch's own error
            if not self.context.on_main_thread():
                return plain(tensor, hook)
            self.reducer.adopt(tensor)
            return self.reducer.hooks.register(tensor, hook)

        self.patches.set(torch.Tensor, "register_post_accumulate_grad_hook", modes_first(register))

    def deferred(self) -> AbstractContextManager[None]:
        """Inside, a model is cut as it is built, where the plan cuts parameters."""
        return nullcontext() if self.retired else self._sharding.building()

    def adopt(self, thing: Any) -> None:
        """Take over a model, optimizer or loader that was made before the session.

        Parameters and buffers of a model become those of the main rank.

        Raises:
            UsageError: for anything else.
        """
        if isinstance(thing, Optimizer):
            self.reducer.adopt_all(thing)
        elif isinstance(thing, torch.nn.Module):
            for value in (*thing.parameters(), *thing.buffers()):
                if not is_lazy(value):
                    self.context.comm.broadcast(value.data)
            for parameter in thing.parameters():
                self.reducer.adopt(parameter)
        elif not isinstance(thing, DataLoader):
            raise UsageError(
                f"ronde.prepare takes models, optimizers and loaders, not a {type(thing).__name__}; "
                f"pass the torch.nn.Module, torch.optim.Optimizer or DataLoader itself"
            )

    def retire(self) -> None:
        """Take everything back; from here on the script is on its own."""
        self.retired = True
        self._sharding.release()
        self.files.uninstall()
        self._console.uninstall()
        self._circumstances.uninstall()
        self._signals.uninstall()
        self.patches.restore()
        self._entropy.restore()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def summary(self) -> RankSummary:
        """What this rank was busy with, and what the user should know about it."""
        self._conclude()
        notes = [*self.context.notes, *self.files.notes, *self._sharding.notes()]
        notes += [group.note for group in self._groups[1:] if group.note]
        cuts = compute.cuts_batches(self.plan, self.config.world_size)
        asking = ", ".join(questions_of_script("Tensor")) if cuts else ""
        if asking:
            notes.append(
                f"{asking}: type(...) is compared with Tensor, which a batch, an output or a loss in parts "
                f"is not by its exact class: it is passed over there; write isinstance(..., torch.Tensor)"
            )
        if cuts and not self.tally.sharded and not self.context.uncut:
            notes.append(why_uncut(self.context, self._started.functions))
        waited = self._waited_ns() - self._waited_before
        return summarize(
            self.config,
            self.tally,
            communication_ns=waited,
            algorithm=self._groups[1].algorithm,
            notes=notes,
            memory=self.memory.memory(),
        )

    def _waited_ns(self) -> int:
        waited = self._meeting.waited_ns
        for group in self._groups:  # no generator: it is asked often in a step that is looked at
            waited += group.waited_ns
        return waited

    def close(self) -> None:
        """Leave the ranks' groups; the last thing that a rank does."""
        if not self.retired:
            self.files.remove_temporary()
        self.files.uninstall()
        self._circumstances.uninstall()
        self._signals.uninstall()
        for group in self._groups:
            group.close()


def _run_id(config: RankConfig) -> str:
    """A script that calls `ronde.init` has not been told; its run directory has that name."""
    return os.environ.get(RUN_ID_KEY) or os.path.basename(config.run_dir)


def _rates(optimizer: Any) -> str:
    """By what rates an optimizer steps: a thread or the clock of one rank may have changed them."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    texts = [repr(float(rate)) for rate in rates if isinstance(rate, float)]
    if not texts:
        return ""
    several = f", ... (digest {zlib.crc32(' '.join(texts).encode()):08x})" if len(set(texts)) > 1 else ""
    return f" at lr {texts[0]}{several}"
