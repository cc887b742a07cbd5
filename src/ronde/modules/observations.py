"""What is known of how models are called: for each form of call, what its observed first call has found.

A form is a module's kind, its modes, the structure of the arguments, and the plain numbers among these and among
the module's attributes. A number that is another one from call to call is left out of the form once a few of its
values have made no difference. Which rows come out of which is found out once; calls 2, 4, 8, ... are compared
with that call, operation by operation.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import torch

from ronde.modules.candidates import Batch
from ronde.modules.traits import PLAIN, Traits
from ronde.rowwise.sequence import Sequence
from ronde.rowwise.verdict import Verdict
from ronde.tensor.context import Context
from ronde.tensor.tensor_class import own_class
from ronde.tensor.tree import structure

__all__ = ["Call", "Known", "Observations"]

# So many values of a form's numbers are observed until those that change nothing are left out of it.
_FEW = 3
# So many are observed at most.
_MANY = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A call of a module on what may be a batch; `values` are the leaves of `given`.

    `optional`: the likeliest batch is too small to be cut, so it is no loss if there is none.
    `listed`: it may be a list with an entry for each sample.
    """

    module: torch.nn.Module
    given: Any
    values: list[Any]
    batches: list[Batch]
    optional: bool
    listed: bool


@dataclasses.dataclass(slots=True)
class Known:
    """What was found of one form of call.

    Attributes:
        steps: of its observed call; None where it was not cut.
        calls: so many so far.
    """

    verdict: Verdict
    steps: Sequence | None = None
    calls: int = 1

    def is_due(self) -> bool:
        """Whether this call, the next one, is to be compared with the observed one."""
        self.calls += 1
        return self.steps is not None and self.calls & (self.calls - 1) == 0


class _Form:
    """Calls that differ in numbers only.

    Attributes:
        free: numbers that make no difference, by their place.
    """

    __slots__ = ("free", "known", "values")

    def __init__(self) -> None:
        self.known: dict[Any, Known] = {}
        self.free: frozenset[int] = frozenset()
        self.values: list[tuple[Any, ...]] = []

    def key(self, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self.free:
            return numbers
        return tuple([each for place, each in enumerate(numbers) if place not in self.free])

    def learn(self, numbers: tuple[Any, ...], known: Known) -> None:
        """Remember one more, and leave out what has made no difference."""
        self.known[self.key(numbers)] = known
        self.values.append(numbers)
        if len(self.known) < _FEW:
            return
        verdicts = {dataclasses.replace(each.verdict, raised=None) for each in self.known.values()}
        operations = {_operations(each.steps) for each in self.known.values()}
        if len(verdicts) == 1 and len(operations) == 1:
            self.free |= self.changing()
            self.known = {self.key(numbers): known}

    def changing(self) -> frozenset[int]:
        """Places of numbers that are not always the same."""
        columns = enumerate(zip(*self.values, strict=True))
        return frozenset(place for place, column in columns if len(set(column)) > 1)


def _operations(steps: Sequence | None) -> Any:
    return None if steps is None else tuple(name for name, _ in steps.steps)


class Observations:
    """Remembers what observed calls have found; one per session."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._traits: weakref.WeakKeyDictionary[torch.nn.Module, Traits] = weakref.WeakKeyDictionary()
        self._forms: dict[Any, _Form] = {}

    def traits(self, module: torch.nn.Module) -> Traits:
        found = self._traits.get(module)
        if found is None or found.outdated():
            found = self._traits[module] = Traits(module)
        return found

    def find(self, call: Call) -> tuple[Known | None, Any]:
        """What is known of calls like this one, and where what is found of it is to be kept."""
        traits = self.traits(call.module)
        form = self._forms.setdefault(_form(self._context, traits, call), _Form())
        numbers = (*traits.numbers(), *[value for value in call.values if type(value) in PLAIN])
        known = form.known.get(form.key(numbers))
        if known is None and len(form.known) >= _MANY:
            known = Known(Verdict(False, _changes(traits, form), ()))
        return known, (form, numbers)

    def keep(self, place: Any, known: Known) -> None:
        form, numbers = place
        form.learn(numbers, known)

    def forget(self, place: Any) -> None:
        """A later call was not like the observed one: the next is observed again."""
        form, numbers = place
        form.known.pop(form.key(numbers), None)
        form.free = frozenset()


def _changes(traits: Traits, form: _Form) -> str:
    verdicts = [each.verdict for each in form.known.values()]
    if not any(each.sharded for each in verdicts):
        return verdicts[-1].reason  # whatever the numbers are: what keeps it in parts has been said
    places = sorted(form.changing() - form.free)
    names = [traits.name_of(each) if each < len(traits.places) else "an argument" for each in places]
    return (
        f"what it does may depend on a number that changes again and again "
        f"({', '.join(dict.fromkeys(names))}); kept in a tensor, it could not"
    )


def _form(context: Context, traits: Traits, call: Call) -> Any:
    described = tuple(
        [
            (value.dtype, value.dim(), value.requires_grad, own_class(value))
            if isinstance(value, torch.Tensor)
            else type(value)
            for value in call.values
        ]
    )
    # The number of rows may decide a branch, so a batch of another size is another form.
    candidates = tuple([(each.axes, each.rows, each.inner, each.likely) for each in call.batches])
    modes = traits.modes(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return traits.kind, structure(call.given), described, candidates, modes, context.pieces
