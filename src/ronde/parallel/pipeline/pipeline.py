"""`pipeline=N`: calls through stages on ranks, micro-batch after micro-batch.

Every rank runs the model's forward. A module of another rank returns tensors without elements; a module of
this rank receives its missing inputs from the rank that has them, while that rank goes on with the next
micro-batch. The output stays on the rank that computes it (`stage_outputs`); the script's backward then runs
through the ranks the other way (`pipeline_edges`). All micro-batches run forward before the first runs
backward: GPipe's schedule (Huang et al. 2019). With known losses a micro-batch can run backward at once
(`Pipeline.losses`).
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from ronde.comm.process_group import Comm
from ronde.errors import RaisedAlone, RondeError, UsageError
from ronde.modules.sharded_call import ShardedCall, at_once
from ronde.parallel.compute.micro_batch_pieces import form_of, given_to, in_pieces, joined, rows_of
from ronde.parallel.context.sequences import Sequences
from ronde.parallel.pipeline.backward import BackwardTurns, Forwarded
from ronde.parallel.pipeline.call_start import CallStart, LookUps
from ronde.parallel.pipeline.chunks import ChunkTurn
from ronde.parallel.pipeline.edges import Join, Tie
from ronde.parallel.pipeline.micro_batch import PieceOfCall, UnitFailed, UsedElsewhere
from ronde.parallel.pipeline.micro_batch_losses import Gradients
from ronde.parallel.pipeline.remote_tensors import packed
from ronde.parallel.pipeline.route import Rerouted, Route
from ronde.parallel.pipeline.stage_outputs import StageOutputs, returned
from ronde.parallel.separate_leaves import HeldLeaves, SeparateLeaves
from ronde.plan.compute import Schedule
from ronde.plan.schedule import chunks_of, turns
from ronde.policies.stages import Stages
from ronde.rng.device_states import same_draws
from ronde.rowwise.compiled import is_compiled
from ronde.tensor.layout import Layout, Pieces
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["PieceLosses", "Pipeline", "StageModels"]


class StageModels(HeldLeaves, Protocol):
    """Parameters of models that a rank holds."""

    def stages(self, module: nn.Module) -> Stages:
        """Return the cut of a model into stages."""
        ...

    def share(self, parameter: torch.Tensor, module: nn.Module) -> None:
        """Replicate a parameter of a model on every rank from now on. A collective."""
        ...


class PieceLosses(Protocol):
    """Losses of micro-batches of one call, by which they run backward.

    Attributes:
        module: the called model.
    """

    module: nn.Module

    def agree(self, possible: bool) -> bool:
        """Return whether micro-batches can run backward at once on every rank. A collective."""
        ...

    def begin(self, cut: Layout, factor: int) -> None:
        """Prepare for a call on these micro-batches of the batch.

        Args:
            factor: ratio of a micro-batch's gradient to the true one.
        """
        ...

    def part(self, piece: int, output: Any) -> Gradients:
        """Return the gradients of a micro-batch's loss, on the rank that has its output."""
        ...

    def end(self, leaves: SeparateLeaves) -> None:
        """Finish after all micro-batches' backwards; gradients are complete."""
        ...


class Pipeline:
    """Executor of pipelined calls; one per session.

    Args:
        comm: pipeline group, a rank for each stage.
        pieces: number of micro-batches of each rank's rows; at most as many as there are rows.
        schedule: schedule of calls with known losses.
        outputs: factory of values from a stage's outputs.
        sequences: executor that cuts the sequences of each micro-batch; None where they are whole.
        back: group of the same ranks for gradients, where these and tensors overtake one another.

    Attributes:
        losses: losses of the next call, or None.
    """

    def __init__(
        self,
        comm: Comm,
        pieces: int,
        held: StageModels,
        schedule: Schedule,
        outputs: StageOutputs,
        sequences: Sequences | None = None,
        back: Comm | None = None,
    ) -> None:
        self._comm, self._both = comm, (comm, back or comm)
        self._schedule: Schedule = schedule
        self._pieces = pieces
        self._asked = f"pipeline={comm.world_size}"
        self._held, self._outputs, self._sequences = held, outputs, sequences
        self._routes: weakref.WeakKeyDictionary[nn.Module, dict[Any, Route]] = weakref.WeakKeyDictionary()
        self._under_way: list[Any] = []
        self.losses: PieceLosses | None = None

    def __call__(self, call: ShardedCall) -> Any:
        self._check(call)
        call = dataclasses.replace(call, given=map_leaves(self._outputs.everywhere, call.given))
        if not self._held.stages(call.module).units:
            return at_once(call) if self._sequences is None else self._sequences(call)
        losses, look_ups = self._losses_of(call), LookUps()
        while True:
            look_ups.begin()
            state = torch.get_rng_state()
            try:
                return self._run(call, losses, look_ups)
            except UnitFailed as failed:
                raise failed.error from failed.error.__cause__
            except (UsedElsewhere, Rerouted) as found:
                # All ranks are at the same point of the first micro-batch.
                torch.set_rng_state(state)
                self.complete()
                if isinstance(found, UsedElsewhere):
                    self._held.share(found.parameter, call.module)
                    self._routes.pop(call.module, None)
            except Exception as error:
                # A refusal is raised on all ranks.
                if call.context.attempting and not isinstance(error, RondeError):
                    raise RaisedAlone(error) from error
                raise

    def complete(self) -> None:
        """Wait until all messages that this rank has sent have left."""
        _wait(self._under_way)
        self._under_way.clear()

    def _check(self, call: ShardedCall) -> None:
        name = type(call.module).__name__
        if call.verdict.joint:
            raise UsageError(
                f"{self._asked} cannot give the single-device answer for {name}, which has batch norm: its "
                f"statistics are those of the whole batch, and change on the rank of its stage only; take a "
                f"norm that does not mix rows, such as GroupNorm, or a plan without pipeline [R380]"
            )
        if any(map(is_compiled, call.module.modules())):
            raise UsageError(
                f"{self._asked} does not cut {name}, which the script has given to torch.compile: compiled "
                "code is one piece; leave torch.compile out of the script, or take a plan without "
                "pipeline [R233]"
            )
        if call.verdict.keeps:
            raise UsageError(
                f"{self._asked} cannot cut {name}: each of its calls changes state ({call.verdict.keeps}), "
                "which only the rank of its stage would have; take a plan without pipeline [R232]"
            )

    def _run(self, call: ShardedCall, losses: PieceLosses | None, look_ups: LookUps) -> Any:
        stages = self._held.stages(call.module)
        device = _device_of(call)
        whole = in_pieces(call, self._pieces)
        if (kernel := call.drawn_in_kernels) and call.stream is None and whole.world_size > 1:
            call.calls.notes.say(
                f"{type(call.module).__name__} runs in one micro-batch: {kernel} draws random numbers inside "
                "of its kernel, where they cannot be cut into rows; with rng=per-rank each micro-batch "
                "draws its own [R234]"
            )
            whole = in_pieces(call, 1)
        if losses is not None:
            pieces = [given_to(call, whole, piece) for piece in range(whole.world_size)]
            if losses.agree(whole.world_size > 1 and self._goes_by_turns(call, stages, whole, pieces)):
                return self._by_turns(call, stages, whole, pieces, losses)
        start, call = self._tied(call, stages, device, look_ups)
        outputs: list[tuple[Any, ...]] = []
        traces: list[list[torch.Tensor]] = []
        raised: list[Exception] = []
        form: Any = None
        route = Route()
        for piece in range(whole.world_size):
            given = given_to(call, whole, piece) if whole.world_size > 1 else list(leaves(call.given))
            route = self._route(call, given)
            run = PieceOfCall(self._both, stages, route, start, device, self._held, self._under_way)
            with self._drawing(call, whole, piece):
                form = run.carry_out(call, given)
            outputs.append(tuple(leaves(form)))
            traces.append(run.trace)
            raised += run.raised
        joined_here = joined(call, form, outputs, whole) if whole.world_size > 1 else form
        trace = [each for trace in traces for each in trace]
        output = self._output(call, joined_here, route, start.token, trace)
        self.complete()
        if raised:
            raise UnitFailed(raised[0])
        return output

    @contextmanager
    def _drawing(
        self, call: ShardedCall, whole: Layout, piece: int, *, last: bool | None = None
    ) -> Iterator[None]:
        """Draw a micro-batch's rows of one device's draws, inside the `with` block.

        Args:
            last: whether no later micro-batch repeats the same draws; by default that of the last
                micro-batch.
        """
        cuts = bool(call.verdict.draws) and not call.drawn_in_kernels
        last = piece == whole.world_size - 1 if last is None else last
        same = nullcontext() if last else same_draws(on_device=self._comm.on_cuda, enabled=cuts)
        with same, call.drawing(rows_of(call, whole, piece) if whole.world_size > 1 else call.cut):
            yield

    def _losses_of(self, call: ShardedCall) -> PieceLosses | None:
        """Return the losses by which micro-batches of this call may run backward, or None."""
        losses = self.losses
        if losses is None or losses.module is not call.module or not torch.is_grad_enabled():
            return None
        self.losses = None
        given = [each for each in leaves(call.given) if isinstance(each, torch.Tensor)]
        # A table accumulates gradients on arrival, before it is known whether they will be used.
        counts_at_once = bool(self._held.stages(call.module).tables)
        return None if counts_at_once or any(each.requires_grad for each in given) else losses

    def _goes_by_turns(
        self, call: ShardedCall, stages: Stages, whole: Layout, pieces: Sequence[Sequence[Any]]
    ) -> bool:
        """Return whether each micro-batch passes the stages in order.

        Unknown routes are recorded here, by a forward of their micro-batch.
        """
        device = _device_of(call)
        token = torch.zeros((), device=device, requires_grad=True)
        start = CallStart(token, {}, LookUps(), self._sequences)
        routes = [self._route(call, given) for given in pieces]
        # Ranks of a stage may run collectives in a micro-batch, so all record a route that one does not know.
        first = {id(route): piece for piece, route in reversed(list(enumerate(routes)))}
        new = [not route.learnt and first[id(route)] == piece for piece, route in enumerate(routes)]
        unknown = call.context.comm.votes(new)
        for piece, (route, given, learns) in enumerate(zip(routes, pieces, unknown, strict=True)):
            if learns:
                run = PieceOfCall(self._both, stages, route, start, device, self._held, self._under_way)
                with self._drawing(call, whole, piece, last=False):
                    run.carry_out(call, given)
        self.complete()
        if stages.chunks == 1:
            return all(route.is_forward for route in routes)
        # A turn repeats the draws of earlier turns of its micro-batch.
        draws_alike = call.stream is None and not call.drawn_in_kernels
        return draws_alike and all(route.goes_through(stages, self._comm.world_size) for route in routes)

    def _route(self, call: ShardedCall, given: Sequence[Any]) -> Route:
        routes = self._routes.setdefault(call.module, {})
        return routes.setdefault(_key(call, given), Route(verdict=call.verdict))

    def _by_turns(
        self,
        call: ShardedCall,
        stages: Stages,
        whole: Layout,
        pieces: Sequence[Sequence[Any]],
        losses: PieceLosses,
    ) -> Any:
        """Run forward and backward of micro-batches in the order of the schedule."""
        first, stop = call.cut.bounds(call.context.rank)
        rows = Pieces(0, call.cut.rows, whole.world_size, start=first, stop=stop)
        losses.begin(rows, call.context.gradient_factor)
        comm, count, chunks, device = self._comm, whole.world_size, stages.chunks, _device_of(call)
        separate = SeparateLeaves(self._held, comm, self._on_stand_in)
        tied = separate.of_all_ranks(call.module.parameters())
        token = torch.zeros((), device=device, requires_grad=True)
        start = CallStart(token, tied, LookUps(), self._sequences)
        outputs: list[tuple[Any, ...]] = [()] * count
        kept: list[dict[Hashable, torch.Tensor]] = [{} for _ in range(count)]
        schedule: Schedule = self._schedule if chunks == chunks_of(self._schedule) else "1f1b"
        backward = BackwardTurns(
            losses,
            token,
            self._held.watched,
            halves=schedule == "zero-bubble",
            arrived=comm.world_size * chunks,
        )
        form: Any = None
        try:
            for kind, piece, chunk in turns(schedule, comm.rank, comm.world_size, count, chunks):
                if kind == "W":
                    backward.weights(piece)
                elif kind == "B":
                    backward.go_back(piece, chunk)
                else:
                    last = chunk + 1 == chunks
                    turn = None if chunks == 1 else ChunkTurn(chunk, chunks, kept[piece])
                    route, sent = self._route(call, pieces[piece]), list[Any]()
                    run = PieceOfCall(self._both, stages, route, start, device, separate, sent, turn)
                    with self._drawing(call, whole, piece, last=last and piece + 1 == count):
                        made = run.carry_out_turn(call, pieces[piece])
                    if run.raised:
                        raise run.raised[0]
                    ends = last and comm.rank in route.sources
                    output = map_leaves(self._of_whole_sequences, made) if ends else None
                    backward.add(piece, chunk, Forwarded(output, run.trace, turn, sent))
                    if last:
                        form = map_leaves(_detached, made)
                        outputs[piece] = tuple(leaves(form))
                        kept[piece].clear()
                    del made, output, run  # the turn owns the graph
        finally:
            self._under_way += backward.under_way()
        losses.end(separate)
        route = self._route(call, pieces[-1])
        made = self._output(call, joined(call, form, outputs, whole), route, None, ())
        self.complete()
        return made

    def _tied(
        self, call: ShardedCall, stages: Stages, device: torch.device, look_ups: LookUps
    ) -> tuple[CallStart, ShardedCall]:
        """Tie the tensors of this call that all ranks have.

        Returns:
            The start of the call, and the call with tied arguments.
        """
        if not torch.is_grad_enabled():
            return CallStart(None, {}, look_ups, self._sequences), call
        shared = [each for each in call.module.parameters() if self._held.leaf(each) is None]
        shared = [each for each in shared if each.requires_grad and id(each) not in stages.untied]
        given = [each for each in leaves(call.given) if isinstance(each, torch.Tensor) and each.requires_grad]
        given = list({id(each): each for each in given}.values())
        anchor = torch.zeros((), device=device, requires_grad=True)
        token, *views = Tie.apply(self._comm, anchor, *shared, *given)
        tied = {id(each): view for each, view in zip(shared, views, strict=False)}
        for each in shared:
            self._on_stand_in(tied[id(each)], each)
        inputs = {id(each): view for each, view in zip(given, views[len(shared) :], strict=True)}
        args = map_leaves(lambda leaf: inputs.get(id(leaf), leaf), call.given)
        return CallStart(token, tied, look_ups, self._sequences), dataclasses.replace(call, given=args)

    def _on_stand_in(self, tensor: torch.Tensor, leaf: torch.Tensor) -> None:
        if self._sequences is not None:
            self._sequences.stand_in(tensor, leaf)

    def _of_whole_sequences(self, value: Any) -> Any:
        return value if self._sequences is None else self._sequences.whole(value)

    def _output(
        self, call: ShardedCall, value: Any, route: Route, token: torch.Tensor | None, trace: Sequence[Any]
    ) -> Any:
        """Return the output: rows of the batch where they are computed, others everywhere."""
        found = list(returned(call, value, route))
        sent = [self._outputs.own(each, _device_of(call)) for each in found]
        sources, moves = [each.source for each in found], [each.gradient for each in found]
        made: Sequence[torch.Tensor]
        if token is not None and any(moves):
            stays = [each.stays for each in found]
            made = Join.apply(self._comm, sources, stays, moves, *sent, token, *trace)
        else:
            made = [
                own.detach() if each.stays else self._comm.broadcast(packed(own), each.source)
                for each, own in zip(found, sent, strict=True)
            ]
        pairs = zip(found, made, strict=True)
        whole = {each.place: self._outputs.over(each, own) for each, own in pairs}
        places = itertools.count()

        def leaf(value: Any) -> Any:
            return whole.get(next(places), value) if isinstance(value, torch.Tensor) else value

        return map_leaves(leaf, value)


def _device_of(call: ShardedCall) -> torch.device:
    return next((each.device for each in call.module.parameters()), torch.device("cpu"))


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _wait(messages: list[Any]) -> None:
    for each in messages:
        each.wait()


def _key(call: ShardedCall, given: Sequence[Any]) -> Any:
    """Return a key of calls that have the same route."""
    trained = tuple(parameter.requires_grad for parameter in call.module.parameters())
    return id(call.verdict), torch.is_grad_enabled(), form_of(given), hash(trained)
