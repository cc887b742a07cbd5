"""`pipeline=N`: a model's call, of which each rank carries out its stages, micro-batch after micro-batch.

Every rank runs the model's forward. A module that is another rank's returns tensors without elements; one
that is this rank's is given what it lacks by the rank that has it, while that goes on with the next
micro-batch. The output comes to all ranks, which compute the loss alike; the script's backward then runs
through the ranks the other way (`pipeline_edges`). All micro-batches are under way before the first comes
back: GPipe's schedule (Huang et al. 2019).
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.overrides import _pop_mode_temporarily
from torch.utils import _pytree as pytree

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.modules.sharded_call import ShardedCall
from ronde.parallel.absent import Absence, Shape, is_absent, packed
from ronde.parallel.holding import holding
from ronde.parallel.pieces import given_to, joined, rows_of, run_on
from ronde.parallel.pipeline_edges import Join, Received, Sent, Tie
from ronde.parallel.pipeline_route import (
    Output,
    Problem,
    Rerouted,
    Route,
    Same,
    Step,
    moves_to,
    sources_of,
)
from ronde.parallel.skipped_draws import DrawsOfUnit, draw_again
from ronde.parallel.stages import Stages, StageUnit
from ronde.rowwise.compiled import is_compiled
from ronde.tensor.layout import Layout
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["Held", "Pipeline", "UsedElsewhere"]


class UsedElsewhere(Exception):
    """A parameter of one stage is used by code that is not that stage's."""

    def __init__(self, parameter: torch.Tensor) -> None:
        super().__init__()
        self.parameter = parameter


class Held(Protocol):
    """What a rank holds of models."""

    def stages(self, module: nn.Module) -> Stages:
        """How a model is cut."""
        ...

    def leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """What stands for a parameter of this rank's stage; None for one that every rank has."""
        ...

    def whole(self, output: Any) -> Any:
        """What a module of this rank's stage returns, on every rank that runs it."""
        ...

    def watched(self) -> Any:
        """Inside, whoever uses a parameter of another stage meets `UsedElsewhere`."""
        ...

    def share(self, parameter: torch.Tensor, module: nn.Module) -> None:
        """Have a parameter of a model on every rank from now on. All ranks come here."""
        ...


class Pipeline:
    """The way of carrying out calls under this plan; one per session.

    Args:
        comm: the pipeline group, a rank for each stage.
        pieces: micro-batches, into which each rank's rows are cut; at most as many as there are rows.
    """

    def __init__(self, comm: Comm, pieces: int, held: Held) -> None:
        self._comm = comm
        self._pieces = pieces
        self._asked = f"pipeline={comm.world_size}"
        self._held = held
        self._routes: weakref.WeakKeyDictionary[nn.Module, dict[Any, Route]] = weakref.WeakKeyDictionary()
        self._under_way: list[Any] = []

    def __call__(self, call: ShardedCall) -> Any:
        self._check(call)
        while True:
            state = torch.get_rng_state()
            try:
                return self._run(call)
            except (UsedElsewhere, Rerouted) as found:
                # All ranks have come to the same place of the first micro-batch.
                torch.set_rng_state(state)
                self.complete()
                if isinstance(found, UsedElsewhere):
                    self._held.share(found.parameter, call.module)
                    self._routes.pop(call.module, None)

    def complete(self) -> None:
        """Return when all that this rank has sent has gone."""
        for each in self._under_way:
            each.wait()
        self._under_way.clear()

    def _check(self, call: ShardedCall) -> None:
        name = type(call.module).__name__
        if call.verdict.joint:
            raise UsageError(
                f"{self._asked} cannot give the single-device answer for {name}, which has batch norm: its "
                f"statistics are those of the whole batch, and change on the rank of its stage only; take a "
                f"norm that does not mix rows, such as GroupNorm, or a plan without pipeline"
            )
        if any(map(is_compiled, call.module.modules())):
            raise UsageError(
                f"{self._asked} does not cut {name}, which the script has given to torch.compile: compiled "
                f"code is one piece; leave torch.compile out of the script, or take a plan without pipeline"
            )
        if call.verdict.keeps:
            raise UsageError(
                f"{self._asked} cannot cut {name}: each of its calls leaves something behind "
                f"({call.verdict.keeps}), which the rank of its stage alone would know; take a plan without "
                f"pipeline"
            )

    def _run(self, call: ShardedCall) -> Any:
        comm = self._comm
        stages = self._held.stages(call.module)
        device = next((each.device for each in call.module.parameters()), torch.device("cpu"))
        token, tied, call = self._tied(call, stages, device)
        start, stop = call.cut.bounds(call.context.rank)
        whole = Layout(0, stop - start, min(self._pieces, max(stop - start, 1)))
        if (kernel := call.drawn_in_kernels) and call.stream is None and whole.world_size > 1:
            call.calls.notes.say(
                f"{type(call.module).__name__} runs in one micro-batch: {kernel} draws inside of its kernel, "
                f"of which no rows can be taken; with rng=per-rank each micro-batch draws anew"
            )
            whole = Layout(0, stop - start, 1)
        routes = self._routes.setdefault(call.module, {})
        devices = [torch.cuda.current_device()] if comm.on_cuda else []
        outputs: list[tuple[Any, ...]] = []
        traces: list[list[torch.Tensor]] = []
        form: Any = None
        route = Route()
        for piece in range(whole.world_size):
            last = piece == whole.world_size - 1
            cuts = bool(call.verdict.draws) and not call.drawn_in_kernels
            same = torch.random.fork_rng(devices, enabled=cuts) if not last else nullcontext()
            given = given_to(call, whole, piece) if whole.world_size > 1 else list(leaves(call.given))
            route = routes.setdefault(_key(call, given), Route(verdict=call.verdict))
            with same, call.drawing(rows_of(call, whole, piece) if whole.world_size > 1 else call.cut):
                run = _Piece(self, stages, route, token, tied, device)
                form = run.carry_out(call, given)
            outputs.append(tuple(leaves(form)))
            traces.append(run.trace)
        joined_here = joined(call, form, outputs, whole) if whole.world_size > 1 else form
        output = self._output(joined_here, route, token, [each for trace in traces for each in trace], device)
        self.complete()
        return output

    def _tied(
        self, call: ShardedCall, stages: Stages, device: torch.device
    ) -> tuple[torch.Tensor | None, dict[int, torch.Tensor], ShardedCall]:
        """A token of this call; by id of a parameter that all ranks have what stands for it; the call."""
        if not torch.is_grad_enabled():
            return None, {}, call
        shared = [each for each in call.module.parameters() if self._held.leaf(each) is None]
        shared = [each for each in shared if each.requires_grad]
        given = [each for each in leaves(call.given) if isinstance(each, torch.Tensor) and each.requires_grad]
        given = list({id(each): each for each in given}.values())
        anchor = torch.zeros((), device=device, requires_grad=True)
        token, *views = Tie.apply(self._comm, anchor, *shared, *given)
        tied = {id(each): view for each, view in zip(shared, views, strict=False)}
        inputs = {id(each): view for each, view in zip(given, views[len(shared) :], strict=True)}
        args = map_leaves(lambda leaf: inputs.get(id(leaf), leaf), call.given)
        return token, tied, dataclasses.replace(call, given=args)

    def _output(
        self, value: Any, route: Route, token: torch.Tensor | None, trace: Sequence[Any], device: torch.device
    ) -> Any:
        """What the model returns, on every rank."""
        tensors = [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
        travelling = [place for place, source in enumerate(route.sources) if source >= 0]
        sources = [route.sources[place] for place in travelling]
        moves = [route.gradients[place] for place in travelling]
        rank = self._comm.rank
        sent = [
            tensors[place] if source == rank else Shape.of(tensors[place]).room(device)
            for place, source in zip(travelling, sources, strict=True)
        ]
        made: Sequence[torch.Tensor]
        if token is not None and any(moves):
            made = Join.apply(self._comm, sources, moves, *sent, token, *trace)
        else:
            made = [
                self._comm.broadcast(packed(each), source) for each, source in zip(sent, sources, strict=True)
            ]
        found = dict(zip(travelling, made, strict=True))
        count = iter(range(len(tensors)))

        def whole(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            place = next(count)
            return found.get(place, leaf)

        return map_leaves(whole, value)


class _Piece:
    """One micro-batch on this rank.

    Attributes:
        trace: by what its messages are found in backward.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        stages: Stages,
        route: Route,
        token: torch.Tensor | None,
        tied: dict[int, torch.Tensor],
        device: torch.device,
    ) -> None:
        self._pipeline = pipeline
        self._comm: Comm = pipeline._comm
        self._held: Held = pipeline._held
        self._stages = stages
        self._route = route
        self._token = token
        self._tied = tied
        self._device = device
        self._learns = not route.learnt
        self._absence = Absence(device, self._between, notes=self._learns)
        self._next = 0
        self.trace: list[torch.Tensor] = []

    def carry_out(self, call: ShardedCall, given: Sequence[Any]) -> Any:
        """The model's output, of which this rank has some tensors and others are absent."""
        if self._learns:
            self._route.steps.clear()
        with self._held.watched(), self._swapped(call.module), self._absence:
            output = run_on(call, given)
        output = map_leaves(self._absence.real, output)
        if self._learns:
            tensors = [leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor)]
            found = sources_of(self._comm, self._route, self._absence, tensors)
            self._route.sources, self._route.gradients = found
            self._route.learnt = True
        elif self._next != len(self._route.steps):
            raise self._another_way(type(call.module).__name__)
        return output

    @contextmanager
    def _swapped(self, module: nn.Module) -> Iterator[None]:
        """Inside, units come here when they are called, and modules have what is tied."""
        before: list[tuple[dict[str, Any], Any]] = []
        try:
            for unit in self._stages.units:
                before.append((unit.module.__dict__, unit.module.__dict__.get("forward", _MISSING)))
                unit.module.__dict__["forward"] = self._caller(unit, unit.module.forward)
            with holding(module, lambda each: self._tied.get(id(each))):
                yield
        finally:
            for members, forward in before:
                if forward is _MISSING:
                    del members["forward"]
                else:
                    members["forward"] = forward

    def _caller(self, unit: StageUnit, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            with _pop_mode_temporarily():
                return self._call(unit, forward, args, kwargs)

        return called

    def _call(self, unit: StageUnit, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A unit's call, on whatever rank it is."""
        values, structure = pytree.tree_flatten((args, kwargs))
        values = [self._absence.real(value) for value in values]
        owner = unit.stage
        if self._learns:
            _refuse_checkpoint(unit, self._pipeline._asked)
            moves = moves_to(self._comm, self._route, self._absence, unit, values)
        else:
            moves = self._step(unit, values).moves
        has = tuple(not is_absent(value) for value in values)
        for move in moves:
            values[move.place] = self._moved(move, values[move.place])
        if owner == self._comm.rank:
            args, kwargs = pytree.tree_unflatten(values, structure)
            output, told = self._own(unit, forward, args, kwargs, values)
        else:
            output, told = None, None
        if self._learns:
            told = self._comm.broadcast_object(told, owner)
            if isinstance(told, Problem):
                raise self._failed(unit, told)
            self._route.steps.append(Step(unit.name, moves, has, told))
        if owner == self._comm.rank:
            return output
        known = self._route.steps[-1 if self._learns else self._next - 1].output
        draw_again(known.draws, self._device)
        return known.rebuilt(lambda leaf: self._absent(leaf, values))

    def _between(self, place: int, values: list[Any]) -> None:
        """An operation of the model's own code is about to begin."""
        for move in self._route.between.get(place, ()):
            values[move.place] = self._moved(move, values[move.place])

    def _own(
        self, unit: StageUnit, forward: Callable[..., Any], args: Any, kwargs: Any, values: Sequence[Any]
    ) -> tuple[Any, Output | Problem | None]:
        """This rank's: what it returns, and what the others are told of it."""
        draws = DrawsOfUnit() if self._learns else None
        try:
            with holding(unit.module, self._own_leaf), draws or nullcontext():
                output = self._held.whole(forward(*args, **kwargs))
        except UsedElsewhere as used:
            if not self._learns:
                raise
            return None, Problem(parameter=_name_of(used.parameter, self._stages, unit))
        except Exception as error:
            if self._learns:
                self._comm.broadcast_object(Problem(error=f"{type(error).__name__}: {error}"), unit.stage)
            raise
        return output, None if draws is None else Output.of(output, values, draws.drawn)

    def _own_leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        leaf = self._held.leaf(parameter)
        # One without elements is another rank's.
        return leaf if leaf is not None and leaf.shape == parameter.shape else None

    def _step(self, unit: StageUnit, values: Sequence[Any]) -> Step:
        if self._next >= len(self._route.steps):
            raise self._another_way(unit.name)
        step = self._route.steps[self._next]
        self._next += 1
        if step.unit != unit.name or step.has != tuple(not is_absent(value) for value in values):
            raise self._another_way(unit.name)
        return step

    def _another_way(self, name: str) -> UsageError:
        return UsageError(
            f"under {self._pipeline._asked} a model goes another way than in its first call of the same "
            f"form, at {name}: ranks would wait for one another; keep what decides that in an attribute of "
            f"its own, as a number or a flag"
        )

    def _moved(self, move: Any, value: Any) -> Any:
        """A tensor on its way to the rank of a unit."""
        rank = self._comm.rank
        under_way = self._pipeline._under_way
        graph = move.shape.gradient and self._token is not None
        if rank == move.source:
            if tuple(value.shape) != move.shape.shape:
                raise self._another_way(f"a tensor of shape {list(value.shape)}")
            if graph:
                self.trace.append(Sent.apply(self._comm, move.to, self._token, value, under_way))
            else:
                under_way.append(self._comm.send(packed(value), move.to))
            return value
        if rank != move.to:
            return value
        room = move.shape.room(self._device)
        if graph:
            tensor = Received.apply(self._comm, move.source, self._token, room, under_way)
            self.trace.append(tensor)
        else:
            tensor = self._comm.receive(room, move.source)
        self._absence.received(value, tensor)
        return tensor

    def _absent(self, leaf: Any, values: Sequence[Any]) -> Any:
        if isinstance(leaf, Same):
            return values[leaf.place]
        return self._absence.stand_in(leaf) if isinstance(leaf, Shape) else leaf

    def _failed(self, unit: StageUnit, problem: Problem) -> Exception:
        if problem.parameter:
            known = {
                f"{each.name}|{name}": parameter
                for each in self._stages.units
                for name, parameter in each.module.named_parameters()
            }
            return UsedElsewhere(known[problem.parameter])
        return UsageError(f"{unit.name} failed on rank {unit.stage} of the pipeline: {problem.error}")


_MISSING: Any = object()


def _name_of(parameter: torch.Tensor, stages: Stages, user: StageUnit) -> str:
    for unit in stages.units:
        for name, each in unit.module.named_parameters():
            if each is parameter:
                return f"{unit.name}|{name}"
    raise UsageError(
        f"{user.name} uses a parameter of a model that it is no part of, of which another rank of the "
        f"pipeline has the elements; make it a part of the module that uses it"
    )


def _key(call: ShardedCall, given: Sequence[Any]) -> Any:
    """Calls of one key go the same way."""
    shapes = tuple(
        (leaf.shape, leaf.dtype, leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else leaf
        if isinstance(leaf, (bool, int, float, str, type(None)))
        else type(leaf)
        for leaf in given
    )
    trained = tuple(parameter.requires_grad for parameter in call.module.parameters())
    return id(call.verdict), torch.is_grad_enabled(), shapes, hash(trained)


def _refuse_checkpoint(unit: StageUnit, asked: str) -> None:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            raise UsageError(
                f"the model calls {unit.name} in a checkpoint (torch.utils.checkpoint), which computes it "
                f"again in backward, and {asked} does not go with that in this version; switch its "
                f"checkpoints off"
            )
        frame = frame.f_back
