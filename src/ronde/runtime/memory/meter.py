"""Meter of a rank's memory by kind, at moments of a few steps.

Counting takes about a microsecond for each tensor, so only pairs of steps are measured, at growing distances.
Every other step costs one comparison.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ronde.patching.torch_internals import DisableTorchFunction, TensorBase
from ronde.rng.device_states import device_in_use
from ronde.runtime.memory.census import StorageCensus
from ronde.runtime.memory.process import allocated, peak_of_process, peak_on_device
from ronde.trace.memory import Memory
from ronde.trace.resident import Kind, Resident

__all__ = ["MemoryMeter", "measured_steps"]

# Measured steps: two in a row, because a step of one optimizer may be followed by another's.
_IN_A_ROW = 2
_FIRST, _FACTOR, _FARTHEST = 2, 8, 2048
# Number of steps in which models are observed and caches are filled: the measurement counts after them, if
# there are more.
_SETTLED = 2
# Attribute of torch itself: reading `.grad` may do more where gradients are sharded.
_gradient: Any = vars(TensorBase)["grad"].__get__


def measured_steps() -> Iterator[int]:
    """Counts of completed steps at which the next step is measured.

    >>> list(itertools.islice(measured_steps(), 8))
    [0, 1, 2, 3, 16, 17, 128, 129]
    """
    near = [_FIRST]
    while near[-1] * _FACTOR < _FARTHEST:
        near.append(near[-1] * _FACTOR)
    for begin in itertools.chain([0], near, itertools.count(_FARTHEST, _FARTHEST)):
        yield from range(begin, begin + _IN_A_ROW)


class MemoryMeter:
    """Peak memory of this rank by kind.

    While `armed` the meter must be informed of each call of a model, backward and optimizer step.

    Args:
        on_cuda: tensors lie on this rank's CUDA device.
        hears_calls: whether it is informed of models and backward; on one rank of steps only.

    Attributes:
        armed: whether this step is measured.
        residents: holders of state outside of the script's tensors.
        on_change: callback for changes of `armed`.
    """

    def __init__(self, *, on_cuda: bool, hears_calls: bool) -> None:
        self.armed = True
        self.residents: list[Resident] = []
        self.on_change: Callable[[bool], None] = lambda _armed: None
        self._on_cuda = on_cuda
        self._allocated = allocated(on_cuda=on_cuda) if hears_calls else None
        # Peaks of the first steps, and of later ones.
        self._first: dict[Kind, int] = {}
        self._settled: dict[Kind, int] = {}
        self._on_host: dict[Kind, int] = {}
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        # Bytes allocated before the step's first call of a model, less others that vary between steps.
        self._before: int | None = None
        self._called = False
        self._steps = 0
        self._measured = measured_steps()
        next(self._measured)  # the first step is armed already
        self._next = next(self._measured)

    def called(self, module: torch.nn.Module) -> None:
        """Register a model that the script calls."""
        self._modules.add(module)
        if not self._called:
            self._called = True
            self._before = self._besides(self.count())

    def begin_backward(self) -> None:
        """Measure at the beginning of a backward, when all saved tensors exist."""
        self._reach_activations()

    def computed_again(self) -> None:
        """Measure in a backward after a recomputation, which adds to saved tensors."""
        if self.armed:
            self._reach_activations()

    def _reach_activations(self) -> None:
        besides = self._besides(self.count())
        if besides is not None and self._before is not None:
            self._reach("activations", max(0, besides - self._before))

    def stepped(self, optimizer: Any) -> None:
        """Measure after a step of an optimizer; to be called at every step."""
        if self.armed:
            self._optimizers.add(optimizer)
            self._before = self._besides(self.count())
            self._called = False
        self._steps += 1
        armed = self._steps == self._next
        if armed:
            self._next = next(self._measured)
        if armed is not self.armed:
            self.armed, self._before = armed, None
            self.on_change(armed)

    def memory(self) -> Memory:
        """Return the peaks so far."""
        peaks = dict(self._first)
        for kind, nbytes in self._settled.items():
            # Caches filled by the first steps look like activations.
            peaks[kind] = nbytes if kind == "activations" else max(nbytes, peaks.get(kind, 0))
        on_device = self._on_cuda and device_in_use()
        total = peak_on_device() if on_device else peak_of_process()
        where = "device" if on_device else "process"
        return Memory(peaks=peaks, total=total, where=where, on_host=self._on_host, settled=self._settled)

    def count(self) -> StorageCensus:
        """Count present memory."""
        census = StorageCensus(on_cuda=self._on_cuda)
        with DisableTorchFunction():  # a parameter in parts would be gathered, if it were used
            self._fill(census)
        for kind, nbytes in census.bytes.items():
            if kind != "activations":
                self._reach(kind, nbytes)
        for kind, nbytes in census.on_host.items():
            if nbytes:
                self._on_host[kind] = max(nbytes, self._on_host.get(kind, 0))
        return census

    def _reach(self, kind: Kind, nbytes: int) -> None:
        peaks = self._settled if self._steps >= _SETTLED else self._first
        peaks[kind] = max(nbytes, peaks.get(kind, 0))

    def _fill(self, census: StorageCensus) -> None:
        optimizers = list(self._optimizers)
        for module in list(self._modules):
            census.count_module(module)
        parameters = [
            tensor for each in optimizers for group in each.param_groups for tensor in group["params"]
        ]
        for tensor in parameters:
            census.count("parameters", tensor)
        for resident in self.residents:
            resident.tell(census)
        for tensor in parameters:
            gradient = _gradient(tensor)
            if gradient is not None:
                census.count("gradients", gradient)
        for optimizer in optimizers:
            state = vars(optimizer).get("state")
            if isinstance(state, Resident):
                state.tell(census)
            else:
                census.count_state(state)

    def _besides(self, census: StorageCensus) -> int | None:
        return None if self._allocated is None else self._allocated() - census.coming
