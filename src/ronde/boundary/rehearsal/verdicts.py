"""Which models may run on this rank's rows: one rehearsal for each way in which a model is called."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ronde.boundary.contents import without_lengths
from ronde.boundary.guards import Refusal
from ronde.boundary.noted import is_notable, noted
from ronde.boundary.noted_lengths import containers, noted_lengths
from ronde.boundary.rehearsal.effect_handlers import effects_refused
from ronde.boundary.rehearsal.in_parts import InParts, Told, cause
from ronde.boundary.rehearsal.made_anew import Kinds, built
from ronde.boundary.rehearsal.numbers import Free, differ_in_lengths, digest, numbers_of
from ronde.boundary.rehearsal.rehearse import NO_AXIS, ROWS, Verdict, prove, rehearse
from ronde.boundary.rehearsal.signature import Behaviour, Number
from ronde.boundary.rehearsal.size_check import SIZE_DECIDES, decided_by_size
from ronde.modules.calls import Calls
from ronde.modules.candidates import Batch
from ronde.modules.listed import LISTED
from ronde.modules.past_calls import PastCalls
from ronde.tensor.global_tensor import GlobalTensor, localize, materialize
from ronde.tensor.tensor_class import alike, own_class
from ronde.tensor.tree import map_leaves, structure

__all__ = ["Verdicts", "is_computed_whole"]

# So many values of its numbers are rehearsed; then they must prove that they decide nothing.
_MANY = 16
# Of so few rows a rehearsal tries the first by itself, of more it does not.
_ONE_APART = 3


# Of a call that is no more than this once, as the next one may find all ranks alike.
_CHANGED_BESIDE = Verdict(
    False, "what its code reads has changed on one rank before another, by another thread of the script"
)


class _Held:
    """A verdict, and the largest number of rows at which it has been found to hold."""

    __slots__ = ("rows", "verdict")

    def __init__(self, verdict: Verdict, rows: int) -> None:
        self.verdict, self.rows = verdict, rows


class _Known:
    """Verdicts on one module."""

    def __init__(self, module: torch.nn.Module, kinds: Kinds) -> None:
        self.behaviour = Behaviour(module)
        self.renewals = 0
        # What its last call has told of a trial that failed.
        self.failed: Told | None = None
        # By form of the call, then by the numbers that it was made with.
        self.verdicts: dict[Any, dict[tuple[Any, ...], _Held]]
        # What of a form of call has been proven to decide nothing.
        self.free: dict[Any, Free]
        kind = built(module, self.behaviour.watched)
        # What the code names beside the module may hold other places by now.
        places = tuple(place.name for place in self.behaviour.places)
        self.verdicts, self.free = kinds.findings(None if kind is None else (kind, places))

    def renew(self, module: torch.nn.Module) -> None:
        self.behaviour = Behaviour(module)
        self.renewals += 1
        self.verdicts, self.free = {}, {}


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """A call of a module on what may be a batch; `values` are the leaves of `call`.

    `optional`: the likeliest batch is too small to be cut, so it is no loss if there is none.
    `listed`: it may be a list with an entry for each sample.
    """

    module: torch.nn.Module
    call: Any
    values: list[Any]
    batches: list[Batch]
    optional: bool
    listed: bool


class Verdicts:
    """Remembers what rehearsals found; one per session."""

    def __init__(self, calls: Calls, plain: Callable[..., Any]) -> None:
        self._calls = calls
        self._plain = plain
        self._modules: weakref.WeakKeyDictionary[torch.nn.Module, _Known] = weakref.WeakKeyDictionary()
        self._kinds = Kinds()
        self._second: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._in_parts = InParts(calls)
        self._past_calls = PastCalls()
        # Modules that run in parts around what is called now, the outermost first.
        self._around: list[tuple[str, Verdict]] = []

    def of(
        self,
        module: torch.nn.Module,
        call: Any,
        values: list[Any],
        batches: list[Batch],
        *,
        optional: bool = False,
        listed: bool = False,
    ) -> Verdict:
        """The verdict on a call of `module`.

        Args:
            values: the leaves of `call`.
            batches: what may be the batch among them, the likeliest first.
            optional: nothing is said where none of them is one.
            listed: the first argument may be a list of samples.
        """
        known = self._modules.get(module)
        new = known is None
        if known is None:
            known = self._modules[module] = _Known(module, self._kinds)
        else:
            self._follow(known, module)
        made = _Call(module, call, values, batches, optional, listed)
        form = _form(self._calls, known.behaviour, made)
        numbers = numbers_of(known.behaviour, values, known.free.get(form))
        held = known.verdicts.setdefault(form, {}).get(numbers)
        if not self._agree(known.behaviour, values, known=held is not None):
            self._say(made, _CHANGED_BESIDE)
            return _CHANGED_BESIDE
        new = new or held is None
        if held is None:
            held = self._found(known, form, numbers, made)
        elif held.verdict.sharded and held.rows < (rows := batches[held.verdict.candidate].rows):
            held.verdict, held.rows = self._proven(held.verdict, made), rows
            self._say(made, held.verdict)
        if new and not self._around and torch.is_grad_enabled():
            cut = held.verdict.sharded and not _is_one_sample(values, batches[held.verdict.candidate])
            self._past_calls.note(module, sharded=cut)
        return held.verdict

    def _follow(self, known: _Known, module: torch.nn.Module) -> None:
        """What has changed since its last call is tried anew; that the trial before failed is taken back.

        Such a module mostly sets itself up in its first call: a guide of Pyro, by what no copy of it has.
        """
        failed, known.failed = known.failed, None
        if not known.behaviour.outdated():
            return
        known.renew(module)
        if failed is not None:
            self._in_parts.take_back(failed)

    def _agree(self, behaviour: Behaviour, values: list[Any], *, known: bool) -> bool:
        """Whether a call like this one is known to all ranks, or to none, and made with the same numbers.

        Threads may change what a module goes by, sooner on one rank than on another; a rehearsal takes all.
        """
        comm = self._calls.context.comm
        if not self._calls.context.script_values.watched:
            return True
        mine = [int(known), digest(numbers_of(behaviour, values, None))]
        told = comm.all_gather(torch.tensor(mine, dtype=torch.int64, device=comm.control_device))
        return bool((told == told[0]).all())

    def has_too_few(self, module: torch.nn.Module, found: list[Batch], least: int) -> bool:
        """Whether the batch has fewer rows, on the second axis, where this module is known to have it.

        What is longer on another axis is none then.
        """
        return any(batch.searched and batch.rows < least for batch in found) and module in self._second

    def _found(self, known: _Known, form: Any, numbers: tuple[Any, ...], made: _Call) -> _Held:
        verdicts = known.verdicts[form]
        if known.renewals >= _MANY:
            verdict = Verdict(False, "its layers or functions are others from call to call")
        elif (in_parts := verdicts.get(bare := without_lengths(numbers))) and not in_parts.verdict.sharded:
            return in_parts  # whatever the lengths are
        elif len(verdicts) < _MANY:
            verdict = self._rehearsed(made, {})
            numbers = numbers if verdict.sharded else bare
        else:
            verdict, numbers = self._with_changing_numbers(known, form, numbers, made)
        if made.listed and verdict.raised:
            verdict = Verdict(False, LISTED)
        self._say(made, verdict)
        if verdict.sharded and 1 in made.batches[verdict.candidate].axes:
            self._second.add(made.module)
        held = _Held(verdict, made.batches[verdict.candidate].rows)
        if len(verdicts) <= _MANY:
            verdicts[numbers] = held
        return held

    def _say(self, made: _Call, verdict: Verdict) -> None:
        name = type(made.module).__name__
        if not verdict.sharded:
            if verdict.reason == LISTED:
                self._in_parts.tell(made.module, LISTED)
            elif made.optional or self._is_no_batch(made, verdict) or _is_criterion(made.module, verdict):
                return
            elif not made.listed and is_computed_whole(
                self._calls, made.module, made.batches[verdict.candidate], verdict
            ):
                self._say_of_single_rows(name, verdict)
            else:
                self._say_why(made.module, verdict)
        elif made.optional or (self._around and _is_torchs(made.module)):
            return  # one sample on the first axis is a batch of one, of which another axis was cut
        elif made.batches[verdict.candidate].searched and made.batches[verdict.candidate].likely:
            self._calls.notes.say(
                f"{name}: the batch was found on the second axis of its arguments (batch-dim=1)"
            )

    def _is_no_batch(self, made: _Call, verdict: Verdict) -> bool:
        """Whether what could be a batch need not be one: the batch around it is of another size, or it is but
        a vector, of which no part can be taken: mostly one sample.

        In a module that runs in parts some rows of the batch may be chosen, for an expert say, and be as wide
        as the batch is long: another axis than the first is blamed once its rows have come out apart.
        """
        batch = made.batches[verdict.candidate]
        if not batch.likely or (verdict.raised and batch.only_vectors(made.values)):
            return True
        found = (
            self._calls.context.standing.rows is not None
            and self._calls.batch_dim is None
            and 0 not in batch.axes
        )
        return found and not verdict.apart

    def are_around(self) -> bool:
        """Whether what is called is called by a module that runs in parts."""
        return bool(self._around)

    @contextmanager
    def inside(self, module: torch.nn.Module, verdict: Verdict) -> Iterator[None]:
        """Around the body of a module that runs in parts."""
        name = type(module).__name__
        self._in_parts.count(name, verdict.reason)
        self._around.append((name, verdict))
        try:
            yield
        finally:
            self._around.pop()

    def ran_as_one_piece(self, module: torch.nn.Module) -> None:
        """Its verdict has been borne out by a first call."""
        self._in_parts.ran_as_one_piece(module)

    def conclude(self) -> None:
        """At the end of a run: say what is known by then only."""
        self._in_parts.say_how_often()
        for sentence in self._past_calls.sentences():
            self._calls.notes.say(sentence)

    def listed(self, module: torch.nn.Module, *, said: bool) -> Verdict:
        """The verdict on a call whose entries hold no batch: it is the list itself, of which it is `said`."""
        if said:
            self._in_parts.tell(module, LISTED)
        return Verdict(False, LISTED)

    def opaque(self, module: torch.nn.Module, kind: str) -> AbstractContextManager[None]:
        """Around the body of a module that is given an object of this class, which hides tensors."""
        reason = (
            f"one of its arguments is a {kind}, which is not taken apart; give the model the tensors in it, "
            f"or a dict, a dataclass or a plain object of them"
        )
        self._tell_of_arguments(module, reason)
        return self.inside(module, Verdict(False, reason))

    @contextmanager
    def arrays(self, module: torch.nn.Module) -> Iterator[None]:
        """Around the body of a module that is given arrays of NumPy, and makes tensors of them, if any."""
        sharded = self._calls.tally.sharded
        before = sum(sharded.values())
        with self.inside(module, Verdict(False, _ARRAYS)):
            yield
        if sum(sharded.values()) > before:
            self._tell_of_arguments(module, _ARRAYS)

    def _tell_of_arguments(self, module: torch.nn.Module, reason: str) -> None:
        """Of the outermost module that has parameters."""
        told = self._in_parts.is_told(type(module).__name__)
        if not self._around and next(module.parameters(), None) is not None and not told:
            self._in_parts.tell(module, reason)

    def _say_why(self, module: torch.nn.Module, verdict: Verdict) -> None:
        """Where a module around this one could not be cut for the same reason, this one is its cause."""
        if verdict.raised and any(around.raised for _, around in self._around):
            return
        reason = cause(verdict.reason)
        alike = [outer for outer, around in self._around if cause(around.reason) == reason]
        told = self._in_parts.find(alike, reason)
        if told is None:
            told = self._in_parts.tell(module, verdict.reason)
            if verdict.raised:
                self._modules[module].failed = told
        elif not _is_torchs(module):
            self._in_parts.narrow(told, type(module).__name__, alike)

    def _say_of_single_rows(self, name: str, verdict: Verdict) -> None:
        """Unless more is known of the module already."""
        if not self._in_parts.is_told(name):
            self._calls.explained = True
            self._calls.notes.say(f"{name} is computed whole where a rank has a single row: {verdict.reason}")

    def _with_changing_numbers(
        self, known: _Known, form: Any, numbers: tuple[Any, ...], made: _Call
    ) -> tuple[Verdict, tuple[Any, ...]]:
        """Numbers that change again and again must not be compared with anything."""
        seen = [*known.verdicts[form], numbers]
        values = [{each[place] for each in seen} for place in range(len(numbers))]
        changing = [
            place
            for place, now in enumerate(numbers)
            if is_notable(now) and len([*filter(is_notable, values[place])]) > 1
        ]
        lengths = [place for place in range(len(numbers)) if differ_in_lengths(values[place])]
        substitutes = {place: known.behaviour.source(place) for place in changing}
        asked = [known.behaviour.source(place) for place in lengths]
        held = [each.verdict for each in known.verdicts[form].values()]
        if not any(each.sharded for each in held):
            return held[-1], numbers  # whatever the numbers are: what keeps it in parts has been said
        if not (changing or lengths):
            others = [known.behaviour.source(place) for place, each in enumerate(values) if len(each) > 1]
            return Verdict(False, _changes_inside(others)), numbers
        if not all(each.sharded for each in held) or (lengths and known.behaviour.hands_on_len):
            return Verdict(False, _changes(substitutes) if changing else _changes_inside(asked)), numbers
        verdict = self._rehearsed(made, substitutes, asked)
        if verdict.sharded:
            free = known.free.get(form, Free())
            free = Free(free.numbers.union(changing), free.lengths.union(lengths))
            known.free[form] = free
            known.verdicts[form].clear()
            # Numbers that only note what they decide are put back, so this run could not see it.
            verdict = dataclasses.replace(
                verdict, keeps=next((each.keeps for each in held if each.keeps), "")
            )
            return verdict, numbers_of(known.behaviour, made.values, free)
        return verdict, numbers

    def _rehearsed(
        self, made: _Call, substitutes: dict[int, Number], asked: Sequence[Number] = ()
    ) -> Verdict:
        """The first candidate that holds, or what is wrong with the likeliest.

        Likeliest of all is one whose rows came out apart: what is wrong with it is not that it is no batch.

        Args:
            substitutes: numbers that must decide nothing.
            asked: where containers are of which nobody must ask the length.
        """
        if self._modules[made.module].behaviour.hooked():
            self._calls.context.gradients_watched = True
            return Verdict(False, "it has hooks, which are to see the whole batch")
        if _is_lazy(made.module):
            return Verdict(False, "it has lazy layers, which are made by their first call")
        run = self._runner(made.module, made.call, substitutes, asked)
        first: Verdict | None = None
        for place, batch in enumerate(made.batches):
            few = [_some_rows(value, axis) for value, axis in zip(made.values, batch.axes, strict=True)]
            rows = min(
                value.shape[axis] for value, axis in zip(few, batch.axes, strict=True) if axis is not None
            )
            verdict = rehearse(self._calls, made.module, run, few, batch.axes, rows)
            if verdict.sharded and rows > _ONE_APART and _has_single_rows(self._calls, batch):
                verdict = rehearse(self._calls, made.module, run, few, batch.axes, _ONE_APART)
            verdict = dataclasses.replace(verdict, candidate=place)
            if verdict.sharded:
                verdict = self._proven(verdict, made, run)
            if verdict.sharded:
                return verdict
            if first is None or (verdict.apart and not first.apart and batch.likely):
                first = verdict
        assert first is not None
        return first

    def _proven(self, verdict: Verdict, made: _Call, run: Any = None) -> Verdict:
        """The verdict where it holds at the size of the call too."""
        batch = made.batches[verdict.candidate]
        run = run or self._runner(made.module, made.call, {})
        size = batch.rows * batch.inner
        if decided_by_size(self._calls.context, made.module, run, made.values, batch.axes, size):
            return Verdict(False, SIZE_DECIDES, apart=True)
        if not batch.searched:
            return verdict
        whole = [
            value if axis is None else materialize(value).detach()
            for value, axis in zip(made.values, batch.axes, strict=True)
        ]
        return prove(self._calls, made.module, run, whole, verdict, size)

    def _runner(
        self, module: torch.nn.Module, call: Any, substitutes: dict[int, Number], asked: Sequence[Number] = ()
    ) -> Callable[..., Any]:
        """Runs a copy of the module, with numbers that note what they decide for those that change."""
        parts = list(module.modules())
        namespaces = self._modules[module].behaviour.namespaces

        def run(twin: torch.nn.Module, values: list[Any]) -> tuple[Any, Any]:
            decisions: list[str] = []
            given = list(values)
            lengths: list[str] = []
            attributes: list[tuple[dict[str, Any], str, Any]] = []
            twins = list(twin.modules())
            own = {id(vars(part)): vars(copied) for part, copied in zip(parts, twins, strict=True)}
            for substitute in substitutes.values():
                if substitute.leaf is not None:
                    given[substitute.leaf] = noted(given[substitute.leaf], decisions)
                elif substitute.namespace is not None:
                    owner = own.get(id(substitute.namespace))
                    if owner is None:
                        raise Refusal(_changes(substitutes))
                    attributes.append((owner, substitute.name, owner[substitute.name]))
            for members, name, value in attributes:
                members[name] = noted(value, decisions)
            args, kwargs = _call_with(given, call)
            held = containers(_found_at(each, own, given) for each in asked)
            with effects_refused(), noted_lengths(namespaces, held, lengths):
                output = self._plain(twin, *args, **kwargs)
            for members, name, value in attributes:
                members[name] = value
            if decisions:
                raise Refusal(_changes(substitutes))
            if lengths:
                raise Refusal(_changes_inside(asked))
            return output, (args, kwargs) if not substitutes else _call_with(values, call)

        return run


def _found_at(source: Number, copies: Mapping[int, dict[str, Any]], values: list[Any]) -> Any:
    """What is there in a trial: `copies` are namespaces of its own, by the id of the module's."""
    if source.namespace is None:
        return None if source.leaf is None else values[source.leaf]
    return copies.get(id(source.namespace), source.namespace).get(source.name)


def _call_with(values: list[Any], call: Any) -> Any:
    """The arguments with other leaves; the script's own lists and dicts are not given away."""
    remaining = iter(values)
    return map_leaves(lambda _: next(remaining), call, always=True)


def _changes(substitutes: dict[int, Number]) -> str:
    names = ", ".join(sorted({substitute.name for substitute in substitutes.values()}))
    return (
        f"what it does may depend on a number that changes again and again ({names}); "
        f"kept in a tensor, it could not"
    )


def _changes_inside(sources: Iterable[Number]) -> str:
    names = ", ".join(sorted({source.name for source in sources}))
    return f"what it does may depend on what is in {names}, which changes again and again"


def _is_one_sample(values: list[Any], batch: Batch) -> bool:
    """Whether what is cut is no batch but an axis of its only row."""
    return any(axis and len(value) == 1 for value, axis in zip(values, batch.axes, strict=True))


def _is_torchs(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _is_criterion(module: torch.nn.Module, verdict: Verdict) -> bool:
    """Whether a module is but a function of the script's: a loss, with nothing inside to be cut."""
    return verdict.reason == NO_AXIS and not module._modules


def _is_lazy(module: torch.nn.Module) -> bool:
    values = (
        value for part in module.modules() for value in (*part._parameters.values(), *part._buffers.values())
    )
    return any(isinstance(value, (UninitializedBuffer, UninitializedParameter)) for value in values)


def _has_single_rows(calls: Calls, batch: Batch) -> bool:
    """Whether some rank, or some piece of its rows, has but one, and many a model has a way with that.

    A `squeeze()` is no reason to leave a batch of many rows whole, so this is asked for each size.
    """
    return calls.fewest(batch.rows) * batch.inner == 1


def is_computed_whole(calls: Calls, module: torch.nn.Module, batch: Batch, verdict: Verdict) -> bool:
    """Whether every rank computes the whole of a batch that cannot be cut as one piece.

    In memory one row may lie otherwise than as one of several, and draws run through memory: of a body that
    is carried out in parts nobody would know.
    """
    return _has_single_rows(calls, batch) and (verdict.drew or _drops(module))


def _drops(module: torch.nn.Module) -> bool:
    return any(isinstance(part, _Dropout) and part.training and part.p > 0 for part in module.modules())


_ARRAYS = "its arguments are NumPy arrays, which are not cut; give it tensors (torch.as_tensor(...))"
_Dropout = torch.nn.modules.dropout._DropoutNd


def _form(calls: Calls, behaviour: Behaviour, made: _Call) -> Any:
    described = tuple(
        (value.dtype, value.dim(), value.requires_grad, own_class(value))
        if isinstance(value, torch.Tensor)
        else type(value)
        for value in made.values
    )
    grad = torch.is_grad_enabled()
    candidates = tuple(
        (batch.axes, min(batch.rows, ROWS), _has_single_rows(calls, batch), batch.likely)
        for batch in made.batches
    )
    return structure(made.call), described, candidates, behaviour.modes(), grad


def _some_rows(value: Any, axis: int | None) -> Any:
    """Rows for a rehearsal: this rank's own, or the whole where a rank has fewer than it takes."""
    if axis is None or not isinstance(value, GlobalTensor):
        return value
    layout = value._layout
    fewest = min(layout.count(rank) for rank in range(layout.world_size))
    rows = (localize(value) if fewest >= ROWS else materialize(value)).detach()
    if value.requires_grad:
        with torch.enable_grad():
            rows = rows.requires_grad_().view_as(rows)  # computed from something, as what is called is given
    return alike(rows, value)
