"""Notes about models that run in parts: one per cause, with counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from ronde.modules.batch_arguments import LISTED, BatchArguments
from ronde.modules.calls import Calls
from ronde.modules.observations import Call
from ronde.rowwise.verdict import NO_AXIS, Verdict

__all__ = ["Explanations", "is_computed_whole"]


_DIGITS = re.compile(r"\b\d+\b")
# Path of a module inside of a tree of modules.
_PATH = re.compile(r"\b(\w+\.)+(?=\w)")


class _Told:
    """Reason why modules of a class run in parts, as told to the user.

    Attributes:
        because_of: classes of inner modules in which the reason was found.
        seen: names of modules that are, or were, in the note.
        often: phrase with the number of calls that the note concerns.
    """

    def __init__(self, name: str, reason: str) -> None:
        self._name, self.reason = name, reason
        self.because_of: list[str] = []
        self.seen = {name}
        self.often = ""

    @property
    def sentence(self) -> str:
        inside = f", because of {', '.join(self.because_of)} inside it" if self.because_of else ""
        return f"{self._name} runs in parts{self.often}, not as one piece{inside}: {self.reason} [R300]"


class Explanations:
    """Notes about modules in parts; one per session."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        # By the name of a module, and the cause.
        self._told: dict[tuple[str, str], _Told] = {}
        self._times: Counter[tuple[str, str]] = Counter()
        # Modules that run in parts around the present call, the outermost first.
        self._around: list[tuple[str, Verdict]] = []

    def say(self, call: Call, verdict: Verdict) -> None:
        """Explain the verdict on a form of call."""
        if verdict.sharded:
            self._say_where(call, verdict)
        elif verdict.reason == LISTED:
            self._tell(call.module, LISTED)
        elif call.optional or self._is_no_batch(call, verdict) or _is_criterion(call.module, verdict):
            return
        elif not call.listed and is_computed_whole(self._calls, call.batches[verdict.candidate]):
            self._say_of_single_rows(type(call.module).__name__, verdict)
        else:
            self._say_why(call.module, verdict)

    def _say_where(self, call: Call, verdict: Verdict) -> None:
        batch = call.batches[verdict.candidate]
        if call.optional or (self._around and _is_torchs(call.module)):
            return  # a first axis of length 1 is the batch, and another axis was cut
        if batch.searched and batch.likely:
            name = type(call.module).__name__
            self._calls.notes.say(
                f"{name}: the batch was found on the second axis of its arguments (batch-dim=1) [R301]"
            )

    def _is_no_batch(self, call: Call, verdict: Verdict) -> bool:
        """Return whether the candidate need not be a batch at all.

        Either the batch around it has another size, or it is only a vector that cannot be cut: mostly one
        sample.

        In a module that runs in parts, selected rows (for an expert, say) may be as wide as the batch is
        long. So a candidate on another axis than the first counts only if its outputs were rows of the batch.
        The same holds for a vector argument of one of torch's layers, which may be the order of a packed
        sequence.
        """
        batch = call.batches[verdict.candidate]
        vectors = batch.only_vectors(call.values)
        if not batch.likely or (verdict.raised and vectors):
            return True
        rows = self._calls.context.standing.rows
        doubtful = 0 not in batch.axes or (vectors and _is_torchs(call.module))
        found = rows is not None and self._calls.batch_dim is None and doubtful
        return found and not verdict.apart

    def are_around(self) -> bool:
        """Return whether the present call is inside a module that runs in parts."""
        return bool(self._around)

    @contextmanager
    def inside(self, module: torch.nn.Module, verdict: Verdict) -> Iterator[None]:
        """Record a module that runs in parts, while its body runs."""
        name = type(module).__name__
        self._times[name, _cause(verdict.reason)] += 1
        self._around.append((name, verdict))
        try:
            yield
        finally:
            self._around.pop()

    def conclude(self) -> None:
        """Add counts at the end of a run, for modules sharded in some calls."""
        named: Counter[str] = Counter(self._calls.tally.sharded)
        for (name, _), times in self._times.items():
            named[name] += times
        for key, told in self._told.items():
            some, calls = self._times[key], named[key[0]]
            self._change(told, often=f" in {some} of {calls} calls" if 0 < some < calls else "")

    def listed(self, module: torch.nn.Module, *, said: bool) -> Verdict:
        """Return the verdict on a call with a list that may be its batch.

        The entries of the list have no batch axis. `said`: whether to add a note.

        The entries of the list have no batch; `said`: tell the user so.
        """
        if said:
            self._tell(module, LISTED)
        return Verdict(False, LISTED)

    def opaque(self, module: torch.nn.Module, kind: str) -> AbstractContextManager[None]:
        """Record a module with an opaque argument of this class, while its body runs.

        Such an argument hides tensors.
        """
        reason = (
            f"one of its arguments is a {kind}, whose tensors are not found; give the model the tensors in "
            "it, or a dict, a dataclass or a plain object of them [R347]"
        )
        self._tell_of_arguments(module, reason)
        return self.inside(module, Verdict(False, reason))

    @contextmanager
    def arrays(self, module: torch.nn.Module) -> Iterator[None]:
        """Record a module with NumPy arguments, while its body runs.

        The user is told if the module makes tensors of them, so that a module inside is sharded.
        """
        sharded = self._calls.tally.sharded
        before = sum(sharded.values())
        with self.inside(module, Verdict(False, _ARRAYS)):
            yield
        if sum(sharded.values()) > before:
            self._tell_of_arguments(module, _ARRAYS)

    def _tell_of_arguments(self, module: torch.nn.Module, reason: str) -> None:
        """Note why arguments are not cut, if the module is outermost and has parameters."""
        told = self._is_told(type(module).__name__)
        if not self._around and next(module.parameters(), None) is not None and not told:
            self._tell(module, reason)

    def _tell(self, module: torch.nn.Module, reason: str) -> None:
        """Note each reason once, regardless of numbers of rows or shapes in it."""
        self._calls.explained = True
        name = type(module).__name__
        key = name, _cause(reason)
        if key not in self._told:
            self._told[key] = _Told(name, reason)
            self._calls.notes.say(self._told[key].sentence)

    def _is_told(self, name: str) -> bool:
        return any(told == name for told, _ in self._told)

    def _change(self, told: _Told, **known: Any) -> None:
        """Amend a note that was already emitted."""
        before = told.sentence
        for name, value in known.items():
            setattr(told, name, value)
        self._calls.notes.say_instead(before, told.sentence)

    def _say_why(self, module: torch.nn.Module, verdict: Verdict) -> None:
        """Note why a module is not cut.

        Where a module around this one could not be cut for the same reason, this one is named as the cause.
        """
        if verdict.raised and any(around.raised for _, around in self._around):
            return
        name, reason = type(module).__name__, _cause(verdict.reason)
        alike = [outer for outer, around in self._around if _cause(around.reason) == reason]
        told = next((told for outer in alike if (told := self._told.get((outer, reason)))), None)
        if told is None:
            self._tell(module, verdict.reason)
        elif not _is_torchs(module) and name not in told.seen:
            told.seen.add(name)
            because_of = [each for each in told.because_of if each not in alike] + [name]
            self._change(told, reason=verdict.reason, because_of=because_of)

    def _say_of_single_rows(self, name: str, verdict: Verdict) -> None:
        """Note that rows are computed whole, unless more is known of the module."""
        if not self._is_told(name):
            self._calls.explained = True
            self._calls.notes.say(
                f"{name} is computed whole where a rank has a single row: {verdict.reason} [R302]"
            )


def is_computed_whole(calls: Calls, batch: BatchArguments) -> bool:
    """Return whether every rank computes a batch whole, because parts are single rows.

    This concerns modules that run in parts. A single row may have other strides than a row among several, and
    random fills follow memory order, which nothing would detect in a body that runs in parts.
    """
    cuts_rows = calls.context.world_size * calls.pieces > 1
    return cuts_rows and calls.fewest(batch.rows) * batch.inner == 1


def _is_torchs(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _is_criterion(module: torch.nn.Module, verdict: Verdict) -> bool:
    """Return whether a module is merely a function (a loss), with nothing to cut."""
    alone = not module._modules and next(module.parameters(), None) is None
    return alone or (verdict.reason == NO_AXIS and not module._modules)


_ARRAYS = "its arguments are NumPy arrays, which are not cut; give it tensors (torch.as_tensor(...)) [R347]"


def _cause(reason: str) -> str:
    """Normalize a reason: remove numbers and module paths, which vary."""
    return _DIGITS.sub("", _PATH.sub("", reason))
