"""One forward pass of a copy of a module on a few rows, watched from all sides and without a trace."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy
import torch
from torch.nn.utils import parametrize

from ronde.boundary.guards import ForeignWrites, Marks, Refusal, apart, irrevocable
from ronde.boundary.host_reads import Conversions, HostReads
from ronde.boundary.kept import (
    Surroundings,
    generator_state,
    kept_tensors,
    module_state,
    picture,
)
from ronde.boundary.rehearsal.backward_counts import BackwardCounts
from ronde.boundary.rehearsal.belongings import Belongings
from ronde.boundary.rehearsal.between import Between, Step
from ronde.boundary.rehearsal.recorded_draws import RecordedDraws
from ronde.boundary.rehearsal.rounding import TOLERANCE
from ronde.boundary.rehearsal.twin import SCRIPTED, is_shared, twin_of
from ronde.boundary.rehearsal.written_on import copied
from ronde.boundary.untouched import Untouched, used
from ronde.boundary.ways_back import restored
from ronde.modules.joint import Joint, Joints
from ronde.patching.other_threads import others_run
from ronde.rng.by_parts import ByParts
from ronde.rng.random_state import HOSTS, Hosts, preserved_random_state
from ronde.tensor.graph import now, uses_older
from ronde.tensor.memory import memory
from ronde.tensor.tensor_class import alike, as_plain, written
from ronde.tensor.tree import leaves, structure

__all__ = ["Run", "Trial", "same"]

_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What one forward pass did.

    Attributes:
        values: the leaves of its arguments.
        draws: random operations and the shapes drawn, in order.
        left_behind: what has changed on the module and around it, with pictures of what it is now.
        shapes: stands for the operations carried out and the shapes of their results.
        joints: batch norms in training that it came by, which join the rows of a batch on purpose.
        steps: what it computed from the batch, in order, where that was watched.
        reads: knows what was made of the batch in it.
        twin: the copy that was called.
        writes: knows which memory is its own.
    """

    output: Any
    values: list[Any]
    draws: list[tuple[str, list[int]]]
    left_behind: dict[str, Any]
    shapes: int
    joints: list[Joint]
    reads: HostReads
    twin: torch.nn.Module
    writes: ForeignWrites
    steps: Sequence[Step] = ()


class Trial:
    """Runs copies of one module on some of a few rows.

    Args:
        call: `call(module, values)` runs a module with the leaves of its arguments replaced; gives the
            output and the arguments as the module left them.
        values, axes: the leaves, and the batch axis of each, None for leaves that enter whole.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        call: Callable[[torch.nn.Module, list[Any]], tuple[Any, Any]],
        values: list[Any],
        axes: Sequence[int | None],
    ) -> None:
        self._module = module
        self._call = call
        self._values = values
        self.axes = axes
        self._surroundings = Surroundings(module)
        self._belongings = Belongings(module, values, self._surroundings)
        # Whether a run drew random numbers.
        self.drew = False
        # Whether the outputs of parts were found to be the rows of the whole's.
        self.apart = False
        if self._surroundings.irrevocable:
            raise irrevocable(self._surroundings.irrevocable)
        if any(
            axis is not None and isinstance(value, torch.Tensor) and value.layout in _SPARSE
            for value, axis in zip(values, axes, strict=True)
        ):
            raise Refusal("one of its arguments is a sparse matrix, which is not cut into rows")
        self._untouched: torch.nn.Module | None = None
        self._kept_out: list[Untouched] = []

    def run(
        self,
        start: int,
        stop: int,
        draws: Any = None,
        *,
        watched: bool = False,
        axes: Sequence[int | None] | None = None,
    ) -> Run:
        """A forward pass on rows `start` to `stop`, from the same random state as every other.

        Args:
            watched, axes: whether what it computes from the batch is noted, and summed along which axes.
        """
        values = [self._part(place, start, stop) for place in range(len(self._values))]
        return self._run(values, draws, watched=watched, axes=axes)

    def spoilt(self, spoilt: Sequence[int], rows: int, *, finite: bool) -> Run:
        """A forward pass on `rows` rows of which some are not numbers, or other ones where they must be."""

        def spoil(place: int) -> Any:
            value, axis = self._part(place, 0, rows), self.axes[place]
            if axis is None:
                return value
            places = torch.tensor(spoilt, device=value.device)
            with torch.no_grad(), as_plain(value):
                if not (value.is_floating_point() or value.is_complex()):
                    others = value.index_select(axis, (places + 1) % rows)
                    value.index_copy_(axis, places, others)
                elif finite:
                    others = value.index_select(axis, (places + 1) % rows)
                    value.index_copy_(axis, places, others * 0.5 + 1)
                else:
                    value.index_fill_(axis, places, torch.nan)
            return value

        return self._run([spoil(place) for place in range(len(self._values))], None)

    def keeps_changing(self, rows: int) -> str:
        """What a second forward pass changes after a first; "" where one leaves all as it finds it."""
        twin = twin_of(self._module, kept_out=self._kept_out)
        left: dict[str, Any] = {}
        for _ in range(2):
            values = [self._part(place, 0, rows) for place in range(len(self._values))]
            left = self._run(values, None, twin).left_behind
        # What it prints and logs is there in any case, mostly empty.
        return min((name for name, value in left.items() if not isinstance(value, str) or value), default="")

    def _state(self, twin: torch.nn.Module) -> dict[str, Any]:
        """Pictures of what is kept on a copy and by name."""
        return {**module_state(twin), **self._surroundings.state()}

    @contextmanager
    def left_behind(self, run: Run) -> Iterator[dict[str, Any]]:
        """What changes inside on a run's copy and around it; that is put back, but for tensors' values."""
        twin, left = run.twin, dict[str, Any]()
        before = self._state(twin)
        with restored((), [vars(part) for part in twin.modules()]):
            yield left
            left.update(_changed(before, self._state(twin)))

    @contextmanager
    def undone(self, told: dict[str, str]) -> Iterator[tuple[dict[str, Any], Hosts]]:
        """Inside, what is done around the module is undone again; what would have been said is in `told`.

        Yields:
            to be filled at the end with pictures of what has changed that the module's code does not name,
            and the generators of the process.
        """
        around, random_state = self._surroundings.restored(), preserved_random_state(self._surroundings.hosts)
        unnamed = self._belongings.restored()
        with around, random_state as hosts, apart(told), _parametrized_anew(), unnamed as changed:
            yield changed, hosts

    def hosts(self) -> frozenset[str]:
        """The generators of the process of which it is told, if they move, that it was by what is tried."""
        return self._surroundings.hosts if others_run() else HOSTS

    def _part(self, place: int, start: int, stop: int) -> Any:
        value, axis = self._values[place], self.axes[place]
        if axis is None:
            # What is behind an argument is the script's.
            behind = isinstance(value, torch.Tensor) and value.grad_fn is not None
            return value.detach().requires_grad_() if behind else _copy_of_object(value)
        with as_plain(value):
            part = (
                value.detach().narrow(axis, start, stop - start).clone().requires_grad_(value.requires_grad)
            )
            if not value.is_leaf:
                with torch.enable_grad():
                    part = part.clone()  # no leaf either, which could not be changed in place
            part = alike(part, value)
            vars(part).update(copied(value))
            return part

    def _run(
        self,
        values: list[Any],
        draws: Any,
        used: torch.nn.Module | None = None,
        *,
        watched: bool = False,
        axes: Sequence[int | None] | None = None,
    ) -> Run:
        # Not by truth: a module may have a length, or raise when it is asked for one.
        twin = self._untouched if used is None else used
        if twin is None:
            twin = twin_of(self._module, kept_out=self._kept_out)
        before = self._state(twin)
        reads, start = HostReads(twin, self._tables(values)), now()
        recorder, conversions = RecordedDraws(reads), Conversions(reads)
        writes = ForeignWrites(_own(twin), self._memory(values))
        marks, joints = Marks({id(tensor): name for name, tensor in self._named(values)}), Joints()
        batch = [value for value, axis in zip(values, self.axes, strict=True) if axis is not None]
        between = Between(batch, reads.only_checks, axes) if watched else None
        counts = BackwardCounts()
        hosts = self.hosts()
        own = [(g, generator_state(g)) for g in self._surroundings.generators]
        objects = [_kept_on(value) for value in values]
        told: dict[str, str] = {}
        torch.clear_autocast_cache()  # or a parameter's cast would come from an earlier run's graph
        with self.undone(told) as (unnamed, host):
            try:
                with (
                    draws or nullcontext(),
                    recorder,
                    writes,
                    between or nullcontext(),
                    conversions,
                    marks,
                    joints,
                    counts,
                    ByParts(),
                ):
                    output, arguments = self._call(twin, values)
            except RuntimeError as error:
                # TorchScript tells of an error of its own, in place of the refusal that ended it.
                if refused := _refused(writes, marks, counts, reads):
                    raise Refusal(refused) from error
                raise
            finally:
                torch.clear_autocast_cache()
                self.drew = self.drew or bool(recorder.draws)
            refused = _refused(writes, marks, counts) or _was_used(self._kept_out)
            after = self._state(twin)
            drew = bool(hosts & host.moved())
            if drew or any(not same(state, generator_state(g)) for g, state in own):
                refused = refused or "it draws random numbers by other means than torch's own generator"
        if refused:
            raise Refusal(refused)
        if reads.refused:
            raise Refusal(reads.refused)
        known = [*self._module.parameters(), *(each for each in values if isinstance(each, torch.Tensor))]
        if uses_older(leaves(output), start, {tensor.grad_fn for tensor in known}):
            if any(isinstance(part, torch.jit.ScriptModule) for part in self._module.modules()):
                raise Refusal(SCRIPTED)
            raise Refusal("it uses a value with a gradient that was computed outside of it")
        self._check_arguments(values, arguments, objects)
        left = {**unnamed, **_changed(before, after)}
        self._check_left(before, left)
        if used is None:
            self._untouched = None if left else twin
        return Run(
            output,
            values,
            recorder.draws,
            {**left, **told},
            writes.shapes,
            joints.seen,
            reads,
            twin,
            writes,
            between.steps if between else (),
        )

    def _check_left(self, before: dict[str, Any], left: dict[str, Any]) -> None:
        """What has changed around it must be the doing of this very run, and can be put back."""
        shared = min(self._surroundings.shared() & left.keys(), default="")
        if shared:
            raise Refusal(f"{shared} changed meanwhile, and another thread of the script may change it")
        if any(_generator_moved(before.get(key), value) for key, value in left.items()):
            raise Refusal("it draws random numbers by other means than torch's own generator")

    def _check_arguments(self, values: list[Any], arguments: Any, objects: list[Any]) -> None:
        """Containers and objects among the arguments must be as they were given."""
        for value, before in zip(values, objects, strict=True):
            if not same(before, _kept_on(value)):
                raise Refusal(f"it changes its argument, a {type(value).__name__}")
        now_there = list(leaves(arguments))
        if len(now_there) != len(values) or any(a is not b for a, b in zip(now_there, values, strict=True)):
            raise Refusal("it changes a list, dict or object among its arguments")

    def _named(self, values: list[Any]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._module.named_parameters():
            yield f"its parameter {name}", parameter
        for value in values:
            if isinstance(value, torch.Tensor):
                yield "its argument", value

    def _tables(self, values: list[Any]) -> list[torch.Tensor]:
        """What has no axis of the batch; whole numbers beside it are mostly its own: lengths, counts."""
        others = [value for value, axis in zip(values, self.axes, strict=True) if axis is None]
        return [value for value in others if isinstance(value, torch.Tensor) and value.is_floating_point()]

    def _memory(self, values: list[Any]) -> dict[int, str]:
        found = ((memory(tensor), name) for name, tensor in self._named(values))
        return {place: name for place, name in found if place is not None}


@contextmanager
def _parametrized_anew() -> Iterator[None]:
    """Inside, no parametrized weight has been made yet: a copy of a module takes the original's."""
    made = parametrize._cache
    parametrize._cache = {}
    try:
        yield
    finally:
        parametrize._cache = made


def _refused(*watchers: ForeignWrites | Marks | BackwardCounts | HostReads) -> str:
    """What the first of them that refused has said; "" where none did."""
    return next((each.refused for each in watchers if each.refused), "")


def _is_object(value: Any) -> bool:
    """Whether a leaf of the arguments is neither tensor nor plain nor code: a model may change it."""
    return not callable(value) and not isinstance(value, (torch.Tensor, str, bytes, int, float, type(None)))


def _kept_on(value: Any) -> Any:
    """A picture of what a model could change of a leaf of its arguments beside the values of a tensor."""
    if isinstance(value, torch.Tensor):
        return picture(written(value))
    return picture(value) if _is_object(value) else None


def _copy_of_object(value: Any) -> Any:
    if not _is_object(value):
        return value
    with preserved_random_state():
        return copy.deepcopy(value)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in after.items() if not same(before.get(key), value)}


def _generator_moved(before: Any, after: Any) -> bool:
    """Whether a picture holds a random generator, of which only the state can have changed."""
    if isinstance(after, tuple) and len(after) == 2 and after[0] == "generator":
        return True
    if isinstance(after, dict):
        before = before if isinstance(before, dict) else {}
        return any(
            not same(before.get(k), v) and _generator_moved(before.get(k), v) for k, v in after.items()
        )
    if isinstance(after, list):
        before = before if isinstance(before, list) and len(before) == len(after) else [None] * len(after)
        return any(not same(a, b) and _generator_moved(a, b) for a, b in zip(before, after, strict=True))
    return False


def _same_entries(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    return list(a) == list(b) and all(map(same, a.values(), b.values()))


def _same_items(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


_QUICK: dict[type, Callable[[Any, Any], bool]] = {
    **dict.fromkeys((bool, int, str, bytes, complex, type(None)), operator.eq),
    **dict.fromkeys((list, tuple), _same_items),
    dict: _same_entries,
}


def _was_used(kept_out: list[Untouched]) -> str:
    """What of a copy was used, though it had been left out."""
    return next(filter(None, map(used, kept_out)), "")


def _own(twin: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor for tensor in kept_tensors(twin) if not is_shared(tensor)]


def same(a: Any, b: Any) -> bool:
    """Equal within the rounding of a different number of rows."""
    kind = type(a)
    if kind is type(b) and kind in _QUICK:  # most of a picture
        return _QUICK[kind](a, b)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        a, b = a.detach(), b.detach()
        if a.is_sparse or b.is_sparse:
            a, b = a.to_dense(), b.to_dense()
        tolerance = TOLERANCE.get(a.dtype, 0.0)
        if torch.equal(a, b):  # as most are that stay, and a bank of memories may be large
            return True
        if not tolerance:
            return False
        scale = a.abs().nan_to_num().max().item() if a.numel() else 0.0
        return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if isinstance(a, numpy.ndarray) or isinstance(b, numpy.ndarray):
        return bool(numpy.array_equal(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-6 * max(abs(a), abs(b)) or a == b or (a != a and b != b)
    if isinstance(a, (tuple, list, dict)):
        if structure(a) != structure(b):
            return False
        return all(same(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))
    if isinstance(a, (int, str, bytes, complex, bool, type(None))):
        return type(a) is type(b) and a == b
    return type(a) is type(b) and same(picture(a), picture(b))
