"""Results of observed first calls, by form of call.

A form is a module's kind, its modes, the structure of the arguments, and the plain numbers among these, among
the module's attributes, and among the variables that its code names. A number that changes from call to call
is left out of the form once a few observed calls were equal: then each call in which it has changed is
compared with the observed one.
"""

from __future__ import annotations

import dataclasses
import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from ronde.modules.batch_arguments import BatchArguments
from ronde.modules.calls import Calls
from ronde.modules.module_key import Traits, comparable
from ronde.rowwise.sequence import Sequence
from ronde.rowwise.verdict import COUNTS, Verdict
from ronde.tensor.tensor_class import own_class
from ronde.tensor.tree import structure

__all__ = ["Call", "CallForm", "KnownCall", "Observations"]

# Number of observed calls of a form before numbers without effect are left out of it.
_FEW = 3
# Largest number of observed calls of a form.
_MANY = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """Call of a module on a possible batch.

    Attributes:
        values: the leaves of `given`.
        optional: whether the likeliest batch is too small to be cut, so that it need not be found.
        listed: whether the batch may be a list with an entry for each sample.
    """

    module: torch.nn.Module
    given: Any
    values: list[Any]
    batches: list[BatchArguments]
    optional: bool
    listed: bool


@dataclasses.dataclass(slots=True)
class KnownCall:
    """Result of observing one form of call.

    Attributes:
        verdict: verdict of its observed call.
        rows: sizes of the batch with which it was called.
        steps: operations of its observed call; None where it was not cut.
        calls: number of calls so far.
        numbers: numbers of the last call.
    """

    verdict: Verdict
    rows: set[int]
    steps: Sequence | None
    numbers: tuple[Any, ...]
    calls: int = 1

    def holds_for(self, whole: int, parts: Iterable[int]) -> bool:
        """Return whether the result applies to `whole` rows, cut into `parts`."""
        if whole in self.rows:
            return True
        if self.steps is None:
            return self.verdict.reason != COUNTS
        return all(self.steps.fits(whole, part) for part in parts)

    def is_due(self, whole: int, numbers: tuple[Any, ...]) -> bool:
        """Return whether to compare this call with the observed one."""
        self.calls += 1
        new = whole not in self.rows or numbers != self.numbers
        self.rows.add(whole)
        self.numbers = numbers
        return self.steps is not None and (new or self.calls & (self.calls - 1) == 0)


class CallForm:
    """Calls that differ in numbers only.

    Attributes:
        known: results by the numbers; several for different sizes of the batch.
        free: numbers without effect, by their place.
        observed: all results.
        given_up: result that is assumed for calls that were not observed.
    """

    __slots__ = ("free", "given_up", "known", "observed")

    def __init__(self) -> None:
        self.known: dict[Any, list[KnownCall]] = {}
        self.free: set[int] = set()
        self.observed: list[KnownCall] = []
        self.given_up: KnownCall | None = None

    def key(self, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self.free:
            return numbers
        return tuple([each for place, each in enumerate(numbers) if place not in self.free])

    def learn(self, known: KnownCall, *, compared: bool) -> None:
        """Add a result, and leave out numbers that have made no difference.

        Args:
            compared: later calls like this one can be.
        """
        self.known.setdefault(self.key(known.numbers), []).append(known)
        self.observed.append(known)
        if known.steps is None or not compared:
            return
        alike = len(self.observed) >= _FEW and self._are_alike()
        if alike or self.free:  # results with other numbers are compared by their operations only
            known.steps = known.steps.without_numbers()
            known.verdict = self._with_all_kept(known.verdict)
        # Decisions by the size of one batch say nothing about that of another.
        sizes = len(known.numbers) - 1
        if alike and (changing := self.changing() - {sizes}):
            self.free |= changing
            self.known = {self.key(known.numbers): [known]}

    def forget(self, known: KnownCall) -> None:
        """Forget a result: a later call differed from the observed one."""
        self.known[self.key(known.numbers)].remove(known)

    def _are_alike(self) -> bool:
        """Return whether all observed calls had equal verdicts and operations.

        State that they set may differ: a grid is made when a size changes.
        """
        verdicts = {
            dataclasses.replace(each.verdict, raised=None, keeps="", sizes=()) for each in self.observed
        }
        return len(verdicts) == 1 and len({_operations(each.steps) for each in self.observed}) == 1

    def _with_all_kept(self, verdict: Verdict) -> Verdict:
        """Return a verdict with all state that any of the observed calls has set."""
        verdicts = [each.verdict for each in self.observed]
        keeps = next((each.keeps for each in verdicts if each.keeps), "")
        sizes = dict.fromkeys(each for found in verdicts for each in found.sizes)
        return dataclasses.replace(verdict, keeps=keeps, sizes=tuple(sizes))

    def changing(self) -> set[int]:
        """Return the places of numbers that vary, and are not left out."""
        columns = enumerate(zip(*(each.numbers for each in self.observed), strict=True))
        changing = {place for place, column in columns if any(each != column[0] for each in column)}
        return changing - self.free


def _operations(steps: Sequence | None) -> Any:
    return None if steps is None else tuple(name for name, _ in steps.steps)


class Observations:
    """Store of results of observed calls; one per session."""

    def __init__(self, calls: Calls) -> None:
        self._calls, self._context = calls, calls.context
        self._traits: weakref.WeakKeyDictionary[torch.nn.Module, Traits] = weakref.WeakKeyDictionary()
        self._forms: dict[Any, CallForm] = {}

    def traits(self, module: torch.nn.Module) -> Traits:
        found = self._traits.get(module)
        if found is None or found.outdated():
            found = self._traits[module] = Traits(module)
        return found

    def find(self, call: Call) -> tuple[KnownCall | None, CallForm, tuple[Any, ...]]:
        """Return the known result of equal calls, the form of `call` and its numbers."""
        traits = self.traits(call.module)
        form = self._forms.setdefault(_form(self._calls, traits, call), CallForm())
        numbers = (
            *traits.numbers(),
            *[comparable(each, 0) for each in call.values if not isinstance(each, torch.Tensor)],
            tuple([self.sizes(call, batch) for batch in call.batches]),
        )
        rows = call.batches[0].rows
        several = form.known.get(form.key(numbers), ())
        known = next((each for each in several if each.holds_for(rows, self.parts(rows))), form.given_up)
        return known, form, numbers

    def parts(self, rows: int) -> set[int]:
        """Return the numbers of rows in the parts of a batch of `rows` rows.

        Parts are those of a rank, or of a piece.
        """
        context, pieces = self._context, self._calls.pieces
        ranks = context.layout(0, rows).counts()
        return ranks | {max(each // pieces, 1) for each in ranks} | {-(-each // pieces) for each in ranks}

    def fit(self, steps: Sequence, rows: int) -> bool:
        """Return whether `rows` rows, and their parts, decide the same as when observed."""
        return all(steps.fits(rows, part) for part in self.parts(rows))

    def sizes(self, call: Call, batch: BatchArguments) -> tuple[Any, ...]:
        """Describe the sizes that the module keeps, relative to a batch."""
        return self._calls.sizes.form(call.module, batch.rows, self.parts)

    def give_up(self, call: Call, form: CallForm) -> Verdict | None:
        """Return a verdict for all further calls, after too many with different numbers."""
        if len(form.observed) < _MANY:
            return None
        verdict = Verdict(False, _changes(self.traits(call.module), form), ())
        form.given_up = KnownCall(verdict, set(), None, ())
        return verdict


def _changes(traits: Traits, form: CallForm) -> str:
    verdicts = [each.verdict for each in form.observed]
    if not any(each.sharded for each in verdicts):
        return verdicts[-1].reason  # independent of the numbers: the reason has been reported
    places = sorted(form.changing())
    if not places:
        return "its operations change from call to call [R337]"
    arguments = ["an argument"] * (len(form.observed[0].numbers) - len(traits.places) - 1)
    known = [*(place.name for place in traits.places), *arguments, "sizes"]
    names = [known[each] for each in places]
    return f"it may depend on values that change often ({', '.join(dict.fromkeys(names))}) [R337]"


def _other(value: Any) -> Any:
    """Describe a value other than a tensor: class, or code and captures."""
    if isinstance(value, types.MethodType):
        return value.__func__.__code__ if hasattr(value.__func__, "__code__") else None, id(value.__self__)
    if not isinstance(value, types.FunctionType):
        return type(value)
    held = [*(cell.cell_contents for cell in value.__closure__ or ()), *(value.__defaults__ or ())]
    held += (value.__kwdefaults__ or {}).values()
    return value.__code__, tuple([id(each) for each in held])


def _form(calls: Calls, traits: Traits, call: Call) -> Any:
    described = tuple(
        [
            (value.dtype, value.dim(), value.requires_grad, own_class(value))
            if isinstance(value, torch.Tensor)
            else _other(value)
            for value in call.values
        ]
    )
    candidates = tuple(
        [(each.axes, calls.fewest(each.rows) == 1, each.inner, each.likely) for each in call.batches]
    )
    modes = traits.modes(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return traits.kind, structure(call.given), described, candidates, modes, calls.pieces
