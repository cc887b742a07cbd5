"""Where state lives: the one place that joins what the plan's state axis asks for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from ronde.comm.process_group import Comm
from ronde.modules.model_edge import Spread
from ronde.modules.sharded_call import Way
from ronde.parallel.building import Building
from ronde.parallel.pieces import RunOn, run_on
from ronde.parallel.recompute import Recompute
from ronde.parallel.row_lookup import RowLookup
from ronde.parallel.row_units import RowUnits
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.policies.rows import rows
from ronde.policies.units import find_units
from ronde.policies.zero import RUNS, divided, in_equal_parts
from ronde.runtime.type_questions import questions_of_script
from ronde.shards import gradients, opaque
from ronde.shards.elementwise import ELEMENTWISE, is_elementwise
from ronde.shards.host_options import can_step_on_host
from ronde.shards.optimizer_shards import ROW_OPTIMIZERS, OptimizerShards, updates_rows
from ronde.shards.saved_parameters import SavedParameters
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.shards.sharded_update import ShardedUpdate
from ronde.sync.gradient_shards import GradientShards, Spans
from ronde.sync.home import HostMemory, OnDevice
from ronde.sync.leaf import gradient_of
from ronde.sync.reduced_gradients import ReducedGradients
from ronde.sync.reducer import Allocate, Reducer
from ronde.tensor.context import Context
from ronde.trace.resident import Resident

if TYPE_CHECKING:
    from ronde.parallel.served_gradients import ServedGradients
    from ronde.server.transport.client import Client

__all__ = ["Sharding"]


class Sharding:
    """What is in parts on this rank, under this plan: perhaps nothing.

    Args:
        comm: the reducer's group.
        client: the connections to parameter servers, where there are some.

    Attributes:
        gradients: where parts of gradients are kept; None where every rank has all of each.
        allocate: makes the memory of gradients that every rank has; None for the group's own.
        rows: where gradients of spread rows are kept; None where the plan spreads no rows.
        has_spread_rows: those of torch's embeddings are, or were.
    """

    def __init__(
        self, plan: Plan, comm: Comm, note: Callable[[str], None], client: Client | None = None
    ) -> None:
        self._plan = plan
        self._client = client
        self._state = plan.state.on(comm.world_size)
        # Where an optimizer works, and where parts of parameters and gradients live.
        self._home = HostMemory() if self._state.offloads_optimizer else OnDevice()
        self._home_of_parts = self._home if self._state.offloads_parts else OnDevice()
        self.allocate: Allocate | None = None
        self.gradients: ReducedGradients | ServedGradients | None = None
        served = self._state.placement == "server"
        if served and client is not None and plan.update.optimizer_on == "server":
            from ronde.parallel.served_gradients import ServedGradients
            from ronde.policies.servers import over_servers

            self._partition = over_servers(client.servers)
            self.gradients = ServedGradients(comm, client, self._partition)
        elif served and client is not None:
            from ronde.parallel.served_buffer import ServedBuffers

            self._partition = divided(in_equal_parts, comm.world_size)
            self.allocate = ServedBuffers(client, comm.world_size).allocate
        else:
            runs = RUNS.get(plan.state.placement, in_equal_parts)
            self._partition = divided(runs, comm.world_size)
            if self._state.cuts_gradients:
                self.gradients = ReducedGradients(comm, self._partition.assign, self._home_of_parts)
        self._parameters: ShardedParameters | None = None
        # Blocks that are cut once more, gathered by the ranks that have the same.
        self._leaves: ShardedParameters | None = None
        self._building: Building | None = None
        self._saved: SavedParameters | None = None
        self._update: ShardedUpdate | None = None
        self._rows = rows(comm.world_size)
        self.rows: ReducedGradients | None = None
        if _spreads_rows(plan, comm.world_size):
            self.rows = ReducedGradients(comm, lambda each: list(map(self._row_spans, each)), OnDevice())
        parts = (self.gradients, self.rows)
        self._in_parts: list[GradientShards] = [each for each in parts if each is not None]
        self.has_spread_rows = False
        self._look_up: RowLookup | None = None
        self._note = note

    def average_by(self, reducer: Reducer) -> None:
        """Know what averages gradients."""

    #: Carries calls of models out that are cut into stages; None where none are.
    way: Way | None = None

    #: Carries out a micro-batch of a model's call.
    run_on: RunOn = staticmethod(run_on)

    #: Computes blocks again in backward; None where the plan keeps all activations.
    recompute: Recompute | None = None

    #: Carries out calls of modules that ranks compute together, within a model that runs in parts.
    spread: Spread | None = None

    #: In a backward one rank waits for another alone.
    sends_gradients = False

    #: Makes of a model's output what it is on this rank's rows; None where it is that.
    outward: Callable[[Any], Any] | None = None

    def bind(self, context: Context) -> None:
        """Give what is in parts its ranks."""
        if self._state.cuts_parameters:
            self._parameters = ShardedParameters(
                context, self._partition, self._home_of_parts, self._note, find_units
            )
            self._building = Building(context, self._parameters.cut_new)
            self._saved = SavedParameters(self._parameters)
        if self._client is not None and self.gradients is not None and self.gradients.away:
            from ronde.parallel.served_gradients import ServedGradients
            from ronde.parallel.served_update import ServedUpdate

            assert isinstance(self.gradients, ServedGradients)
            self._update = ServedUpdate(context, self._client, self._partition, self.gradients, self._note)
        elif self._state.cuts_optimizer:
            held = OptimizerShards(
                self._partition, context.rank, self._home, self.gradients, self._parameters
            )
            self._update = ShardedUpdate(context, held, self._takes, self._note)
        if self.rows is not None:
            self._bind_rows(context, self.rows)

    def _bind_rows(self, context: Context, gradients: ReducedGradients) -> None:
        note, home = self._note, self._home_of_parts
        parameters = ShardedParameters(context, self._rows, home, note, RowUnits(note))
        self._parameters, self._saved = parameters, SavedParameters(parameters)
        self._look_up = RowLookup(context, parameters)
        held = OptimizerShards(self._rows, context.rank, OnDevice(), gradients, parameters, whole_too=False)
        update = ShardedUpdate(context, held, self._holds_rows, note, ROW_OPTIMIZERS, updates_rows)
        self._update = update

    def scheduled(self, model: torch.nn.Module, loss_fn: Any, attempt: Any) -> Any:
        """What carries out forward and backward of steps in one; None where nothing does.

        Args:
            attempt: is called before each try of a step; the result, where the try does not count.
        """
        return None

    def look_up(self) -> RowLookup | None:
        """What looks up rows that are spread; None where none can be."""
        return self._look_up

    def _row_spans(self, weight: torch.Tensor) -> Spans | None:
        parameters = self._parameters
        spread = parameters is not None and parameters.own(weight) is not None
        return self._rows.spec(weight) if spread else None

    def _holds_rows(self, optimizer: Any) -> bool:
        members = (tensor for group in optimizer.param_groups for tensor in group["params"])
        return any(self._row_spans(tensor) is not None for tensor in members)

    def has_gradient(self, tensor: torch.Tensor) -> bool:
        """Whether a leaf has a gradient, perhaps in parts; it is not gathered."""
        return gradient_of(tensor) is not None or any(tensor in parts for parts in self._in_parts)

    @contextmanager
    def gathered(self, module: torch.nn.Module) -> Iterator[None]:
        """Inside, a module's parameters are whole on every rank. All ranks come here."""
        with contextlib.ExitStack() as stack:
            for parameters in self._sharded:
                stack.enter_context(parameters.holding(list(module.parameters())))
            yield

    def held(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """This rank's parts of these parameters, as they are now."""
        return parameters

    def parameters_of_leaves(self) -> dict[int, int]:
        """Map the id of each block's leaf to the id of its parameter."""
        return {}

    @property
    def kept_gradients(self) -> GradientShards | None:
        """The gradients of which this rank has a part; None where every rank has all of each."""
        return self.gradients

    @property
    def _sharded(self) -> list[ShardedParameters]:
        """All stores of sharded parameters."""
        return [each for each in (self._parameters, self._leaves) if each is not None]

    @property
    def residents(self) -> list[Resident]:
        """What holds state elsewhere than in the script's tensors."""
        return [*self._in_parts, *self._sharded]

    def install(self, patches: Patches, context: Context) -> None:
        if self._update is not None:
            self._update.install(patches)
        if self.gradients is not None:
            kept = () if self._parameters is None else (self._parameters.lasting,)
            gradients.install(patches, context, self.gradients, *kept)
        if self.rows is not None and self._parameters is not None:
            gradients.install(patches, context, self.rows, self._parameters.lasting, clips=False)
        if self._building is not None:
            self._building.install(patches)
        if self._parameters is not None and self._saved is not None:
            opaque.install(patches, self._parameters, self._saved)
            self._saved.install(patches, at_once=self.rows is None)

    def release(self) -> None:
        """Make everything whole again. All ranks come here."""
        if self._update is not None:
            self._update.release()
        for parts in self._in_parts:
            parts.restore()
        for parameters in self._sharded:
            parameters.release()
        self.uninstall()

    def uninstall(self) -> None:
        """Take back what `install` has done beside its patches."""
        if self._saved is not None:
            self._saved.uninstall()

    def notes(self) -> list[str]:
        """What the user should know at the end."""
        if self._parameters is None or not self._parameters.are_there:
            return []
        return [
            f"{place} asks for type(...) and Parameter, which a parameter in parts is not by its exact "
            f"class: it is passed over there; write isinstance(..., torch.nn.Parameter)"
            for place in questions_of_script("Parameter")
        ]

    @contextmanager
    def calling(self, module: torch.nn.Module) -> Iterator[None]:
        """Around an outermost call of a model."""
        if self._parameters is None:
            yield
            return
        with self._parameters.calling(module):
            if self.rows is not None and self._saved is not None and self._parameters.are_there:
                self.has_spread_rows = True
                if not self._saved.begin():
                    self._parameters.pin()  # what the script's hooks keep of rows must stay there
            yield

    def settle(self) -> None:
        """Release parameters gathered on some ranks only, after an exception on all. A collective."""
        for parameters in self._sharded:
            parameters.settle()

    def building(self) -> AbstractContextManager[None]:
        """Around the making of a model."""
        return nullcontext() if self._building is None else self._building.deferred()

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around a backward and its reduction."""
        with contextlib.ExitStack() as stack:
            for parameters in self._sharded:
                stack.enter_context(parameters.backward())
            yield

    def before_step(self) -> None:
        """Any optimizer, one whose steps are not cut too, is about to step."""
        for parameters in self._sharded:
            parameters.unpin()

    def note_whole_state(self, optimizer: Any) -> None:
        """Say that an optimizer's state is not cut, though the plan asks for it."""
        if self.rows is not None:
            self._note_whole_rows(optimizer)
        if self._update is None or self.rows is not None:
            return
        known = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        kind = type(optimizer)
        # A library's own of one of these names is another one.
        foreign = kind not in ELEMENTWISE and kind.__name__ in known.split(", ")
        state = f"the optimizer state of {kind.__module__ + '.' if foreign else ''}{kind.__name__}"
        offload, placement = self._plan.item("offload"), self._plan.item("state")
        offloads, elementwise = self._state.offloads_optimizer, is_elementwise(optimizer)
        differentiable = type(optimizer) in ELEMENTWISE and not elementwise
        if elementwise and not offloads:
            return
        if differentiable and not offloads:
            self._note(
                f"{state} is whole on every rank: a step with differentiable=True has a graph of whole "
                f"tensors; leave that out to have {placement}"
            )
        elif not offloads:
            self._note(
                f"{state} is whole on every rank: {placement} cuts that of {known}, which update each "
                f"element by itself"
            )
        elif differentiable:
            self._note(
                f"{state} is whole, and stays on the device: a step with differentiable=True has a graph of "
                f"whole tensors; leave that out to have {offload}"
            )
        elif not elementwise:
            self._note(
                f"{state} is whole, and stays on the device: {offload} moves that of {known}, which update "
                f"each element by itself"
            )
        elif not can_step_on_host(optimizer):
            self._note(
                f"{state} is whole, and stays on the device: a step with capturable=True is for devices "
                f"only; leave that out to have {offload}"
            )

    def _note_whole_rows(self, optimizer: Any) -> None:
        if not updates_rows(optimizer) and self._holds_rows(optimizer):
            known = ", ".join(kind.__name__ for kind in ROW_OPTIMIZERS)
            self._note(
                f"{type(optimizer).__name__} has the rows of an embedding whole on every rank for each step: "
                f"sparse=sharded leaves them spread for the steps of {known} without momentum"
            )

    def _takes(self, optimizer: Any) -> bool:
        """Without state, to share whole parameters would cost more than to update all of them."""
        if self._state.offloads_optimizer and not can_step_on_host(optimizer):
            return False
        if self.gradients is not None or type(optimizer) is not torch.optim.SGD:
            return True
        return any(group["momentum"] != 0 for group in optimizer.param_groups)


def _spreads_rows(plan: Plan, world_size: int) -> bool:
    """Whether sparse weights of torch's embeddings are in parts.

    Where the plan cuts other state too, sparse gradients are whole on every rank. Micro-batches may be
    fewer on one rank than on another, a compiled model asks no parameter for its rows, a scale of float16
    looks at whole gradients, and the optimizer of a cut model steps on blocks.
    """
    compute = plan.compute
    plain = compute.micro_batches == 1 and compute.precision != "fp16" and not compute.compile
    state = plan.state
    plain = plain and plan.mesh.cuts_models is None
    whole = state.placement == "replicated" and not state.cuts_optimizer
    return state.sparse == "sharded" and world_size > 1 and plain and whole
