"""The backward of a rehearsal, for a function with one of its own: it may mix rows where forward does not.

Each leaf's gradient is added up aside, so that nothing comes to anybody's `.grad`. That of what the function
runs backward in its own backward is added to it, as torch would: a reversible block gives parameters their
gradients so.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ronde.boundary.guards import Refusal, short
from ronde.boundary.host_reads import Conversions
from ronde.boundary.rehearsal.recorded_draws import RecordedDraws
from ronde.boundary.rehearsal.trial import Run, Trial, same
from ronde.modules.calls import Calls, TrialBackward
from ronde.modules.output_axis import OutputAxis
from ronde.patching.other_threads import others_run
from ronde.rng.random_state import torch_states
from ronde.tensor.graph import custom_backwards, hides_functions, reached
from ronde.tensor.layout import Layout
from ronde.tensor.tree import leaves

__all__ = ["compare_gradients"]


def compare_gradients(
    calls: Calls,
    trial: Trial,
    module: torch.nn.Module,
    whole: Run,
    parts: Sequence[Run],
    outputs: Sequence[OutputAxis],
    cut: Layout,
) -> None:
    """The parts' gradients must add up to the whole's, and those of their rows must be the whole's rows.

    Args:
        outputs: the batch axis of each leaf of the output.
        cut: the rows of each part.
    """
    results = list(leaves(whole.output))
    if not custom_backwards(results) and not (calls.function_tried and hides_functions(results)):
        return
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    expected = _Backward(calls, whole, parameters)
    found = [_Backward(calls, run, parameters, _FACTOR) for run in parts]
    weights = list(_weights(whole, outputs))
    try:
        expected.run(trial, weights)
        for rank, backward in enumerate(found):
            given = [_rows(*each, cut, rank) for each in zip(weights, outputs, strict=True)]
            backward.run(trial, [part if part is None else part * _FACTOR for part in given])
    except Refusal:
        raise
    except Exception as error:
        raise Refusal(f"a trial of its backward failed ({short(error)})") from None
    for what, said in expected.told.items():
        if any(backward.told[what] != said for backward in found):
            raise Refusal(f"{what} depends on the batch")
    for backward in found:
        changed = expected.left.keys() | backward.left.keys()
        for name in sorted(changed):
            if not same(expected.left.get(name), backward.left.get(name)):
                raise Refusal(f"its backward changes {name}, which depends on the batch")
    for parameter in parameters:
        _compare_sums(expected.of(parameter), [backward.of(parameter) for backward in found])
    for place, axis in enumerate(trial.axes):
        a, *others = (backward.of(backward.values[place]) for backward in (expected, *found))
        if axis is None:
            _compare_sums(a, others)
        elif a is not None and not same(a, _joined(a, others, axis, cut)):
            raise Refusal(_MIXES)


_MIXES = "its backward (a torch.autograd.Function) mixes rows, or is not linear in the gradient"
# On shards gradients are as many times larger as there are ranks: a backward that clips or rounds, or has a
# gradient of its own, is another then. A power of two, which leaves digits alone, and large, for thresholds.
_FACTOR = 2.0**10


def _compare_sums(whole: torch.Tensor | None, parts: Sequence[torch.Tensor | None]) -> None:
    given = [part for part in parts if part is not None]
    if whole is None and not given:
        return
    if whole is None or not given or not same(whole, sum(given[1:], given[0])):
        raise Refusal(_MIXES)


def _joined(
    whole: torch.Tensor, parts: Sequence[torch.Tensor | None], axis: int, cut: Layout
) -> torch.Tensor:
    """The parts' rows end to end; no gradient is one of nought."""
    sizes = [cut.count(rank) for rank in range(cut.world_size)]
    empty = torch.zeros_like(whole).split(sizes, axis)
    return torch.cat([b if a is None else a for a, b in zip(parts, empty, strict=True)], axis)


def _weights(whole: Run, outputs: Sequence[OutputAxis]) -> Iterator[torch.Tensor | None]:
    """A fixed gradient of each output that has rows."""
    generator = torch.Generator().manual_seed(0)
    for value, axis in zip(leaves(whole.output), outputs, strict=True):
        if isinstance(value, torch.Tensor) and value.requires_grad and axis.dim is not None:
            yield torch.rand(value.shape, generator=generator, dtype=torch.float64).to(value)
        else:
            yield None


def _rows(weights: torch.Tensor | None, axis: OutputAxis, cut: Layout, rank: int) -> torch.Tensor | None:
    return None if weights is None else axis.layout(weights, cut).take(weights, rank)


class _Backward:
    """That of one run.

    Args:
        parameters: whose gradients are the script's.
        factor: how many times too large the gradients are that it begins with.

    Attributes:
        values: the leaves of the run's arguments.
        told: what it printed and logged.
        left: what it changed on the module and around it.
    """

    def __init__(self, calls: Calls, run: Run, parameters: Sequence[torch.Tensor], factor: float = 1) -> None:
        self._factor = factor
        self.values = run.values
        self.told: dict[str, str] = {}
        self.left: dict[str, Any] = {}
        self._calls = calls
        self._run = run
        self._wanted = [
            value for value in run.values if isinstance(value, torch.Tensor) and value.requires_grad
        ]
        self._parameters = {id(parameter) for parameter in parameters}
        self._sums: dict[int, tuple[Any, torch.Tensor]] = {}
        # The `.grad` of other leaves, as it was: where code in a backward has made them, it looks there.
        self._before: list[tuple[Any, torch.Tensor | None]] = []

    def of(self, leaf: Any) -> torch.Tensor | None:
        """The gradient of a parameter, or of a leaf of the arguments."""
        return self._sums[id(leaf)][1] / self._factor if id(leaf) in self._sums else None

    def run(self, trial: Trial, weights: Sequence[torch.Tensor | None]) -> None:
        """From the outputs that have a gradient here."""
        pairs = [(a, b) for a, b in zip(leaves(self._run.output), weights, strict=True) if b is not None]
        reads = self._run.reads
        reads.where = "backward"
        around, own = trial.undone(self.told), trial.left_behind(self._run)
        with around as (unnamed, host), own as self.left, self._under_way():
            states, hosts = torch_states(), trial.hosts()
            with RecordedDraws(reads) as recorder, self._run.writes:
                self._add([a for a, _ in pairs], [b for _, b in pairs], self._wanted)
            moved = not same(states, torch_states())
            drew = moved and (recorder.draws or not others_run())
            if drew or hosts & host.moved():
                raise Refusal("its backward draws random numbers")
        self.left.update(unnamed)
        refused = self._run.writes.refused or reads.refused
        if refused:
            raise Refusal(refused)

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        self._calls.trial_backward = TrialBackward(self._again, self._watched)
        # A reentrant checkpoint refuses where single gradients are asked for, as it gives them to all leaves.
        autograd: Any = torch.autograd
        plain, autograd._is_checkpoint_valid = autograd._is_checkpoint_valid, lambda: True
        try:
            yield
        finally:
            autograd._is_checkpoint_valid = plain
            self._calls.trial_backward = None
            for leaf, before in self._before:
                leaf.grad = before

    @contextmanager
    def _watched(self) -> Iterator[None]:
        with Conversions(self._run.reads), _Untouched(self._parameters):
            yield

    def _again(
        self,
        results: Any,
        given: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> None:
        """In place of `torch.autograd.backward`."""
        given = _several(grad_variables if given is None else given)
        options = {"retain_graph": retain_graph, "create_graph": create_graph}
        self._add(_several(results), given, _several(inputs), only=inputs is not None, **options)

    def _add(self, results: Any, given: Any, wanted: Any, *, only: bool = False, **options: Any) -> None:
        """Give their gradients to what is wanted, and to all leaves, if not to these only."""
        found = [] if only else [each.leaf for each in reached(results, torch.float16)]
        asked = list({id(leaf): leaf for leaf in (*wanted, *found)}.values())
        if not asked:
            return
        gradients = torch.autograd.grad(results, asked, given or None, allow_unused=True, **options)
        for leaf, gradient in zip(asked, gradients, strict=True):
            if gradient is not None:
                self._give(leaf, gradient)

    def _give(self, leaf: Any, gradient: torch.Tensor) -> None:
        known = self._sums.get(id(leaf))
        self._sums[id(leaf)] = leaf, gradient if known is None else known[1] + gradient
        if id(leaf) in self._parameters or any(leaf is value for value in self._wanted):
            return
        if isinstance(leaf, torch.nn.Parameter):
            raise Refusal("its backward gives a gradient to a parameter that is not its own")
        if known is None:
            self._before.append((leaf, leaf.grad))
        leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient


class _Untouched(TorchFunctionMode):
    """Refuses what a backward does to gradients of parameters by itself: no reducer adds that up over ranks.

    Args:
        parameters: their ids.
    """

    def __init__(self, parameters: Collection[int]) -> None:
        super().__init__()
        self._parameters = parameters

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and id(args[0]) in self._parameters and func in _gradient():
            raise Refusal(
                "its backward uses the .grad of a parameter, where it finds that of one rank's rows"
            )
        return func(*args, **(kwargs or {}))


def _gradient() -> tuple[Any, ...]:
    """What reads and writes `.grad`; a session may have replaced it."""
    attributes = [inspect.getattr_static(torch.Tensor, name) for name in ("grad", "_grad")]
    return tuple(use for each in attributes for use in (each.__get__, each.__set__))


def _several(values: Any) -> list[Any]:
    if values is None:
        return []
    return [values] if isinstance(values, torch.Tensor) else list(values)
