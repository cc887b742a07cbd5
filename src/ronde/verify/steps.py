"""Records every optimizer step and ends the run after the last.

Gradient norms are taken before the step, parameters and generators after it.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import weakref
from typing import Any

import numpy
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ronde.sync.parameter_name import living_modules
from ronde.verify.early_end import end_early
from ronde.verify.reads import to_array
from ronde.verify.record import Writer

__all__ = ["StepRecorder"]


class StepRecorder:
    """Counts and records the steps of all optimizers. A step that a GradScaler skips calls no hook."""

    def __init__(self, writer: Writer, steps: int) -> None:
        self._writer = writer
        self._limit = steps
        self._done = 0
        # Weak references, so that tensors that the script drops are freed as usual.
        self._names: dict[int, tuple[str, weakref.ref[torch.Tensor]]] = {}
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, str] = weakref.WeakKeyDictionary()
        self._met = 0

    def install(self) -> None:
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._writer.active:
            return
        norms = {name: _norm(parameter.grad) for name, parameter in self._named(optimizer)}
        self._writer.event("gradients", step=self._done + 1, norms=norms)

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._writer.active:
            return
        self._done += 1
        parameters = {name: self._writer.store(to_array(each)) for name, each in self._named(optimizer)}
        self._writer.event(
            "step",
            step=self._done,
            optimizer=self._optimizer_name(optimizer),
            parameters=parameters,
            random=_generator_states(),
        )
        if self._done >= self._limit:
            self._writer.event("stopped")
            end_early()

    def _named(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if any(self._name(each) is None for each in parameters):
            self._learn_names()
        prefix = self._optimizer_name(optimizer)
        result: dict[str, torch.Tensor] = {}
        for index, parameter in enumerate(parameters):
            name = self._name(parameter) or f"{prefix} parameter {index}"
            while name in result:
                name += "'"
            result[name] = parameter
        return list(result.items())

    def _name(self, parameter: torch.Tensor) -> str | None:
        """Return its name, unless the id was of a tensor that is gone."""
        known = self._names.get(id(parameter))
        return known[0] if known is not None and known[1]() is parameter else None

    def _optimizer_name(self, optimizer: torch.optim.Optimizer) -> str:
        name = self._optimizers.get(optimizer)
        if name is None:
            self._met += 1
            name = self._optimizers[optimizer] = f"{type(optimizer).__name__} {self._met}"
        return name

    def _learn_names(self) -> None:
        """Learn parameters' names from the living modules.

        The longest name is that in the outermost module.
        """
        self._names.clear()
        owners: dict[int, str] = {}
        modules = living_modules()
        children = {id(child) for module in modules for child in module._modules.values()}
        roots: list[torch.nn.Module] = [each for each in modules if id(each) not in children]
        for root in roots:
            for name, parameter in root.named_parameters():
                if len(name) > len(owners.get(id(parameter), "")):
                    owners[id(parameter)] = name
                    self._names[id(parameter)] = (name, weakref.ref(parameter))


def _norm(gradient: torch.Tensor | None) -> float | None:
    if gradient is None:
        return None
    entries = to_array(gradient).ravel()
    wide = numpy.complex128 if numpy.iscomplexobj(entries) else numpy.float64
    return float(numpy.linalg.norm(entries.astype(wide)))


def _generator_states() -> dict[str, str]:
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": pickle.dumps(numpy.random.get_state()),
        "random": pickle.dumps(random.getstate()),
    }
    return {name: hashlib.blake2b(state, digest_size=8).hexdigest() for name, state in states.items()}
