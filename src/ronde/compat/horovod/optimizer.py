"""`DistributedOptimizer`: reduces gradients during backward; `step` waits for them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ronde.compat.horovod import operations as ops
from ronde.compat.horovod.basics import ProcessSet, engine, global_process_set, size
from ronde.compat.horovod.compression import Compression
from ronde.compat.horovod.operations import Adasum, Average, synchronize
from ronde.patching.torch_internals import current_graph_task_id, execution_engine

__all__ = ["DistributedOptimizer"]


class _Reducing:
    """A mixin that reduces gradients; combined with the wrapped optimizer's class."""

    _parameter_names: dict[torch.Tensor, str]

    def _begin(
        self,
        compression: Any,
        passes: int,
        op: int,
        predivide: float,
        groups: Any,
        process_set: ProcessSet,
        *,
        sparse_as_dense: bool,
    ) -> None:
        self._compression, self.op, self.process_set = compression, op, process_set
        self.backward_passes_per_step = passes
        self.gradient_predivide_factor, self.sparse_as_dense = predivide, sparse_as_dense
        self._handles: dict[int, tuple[Any, Any]] = {}
        self._delay = {id(each): passes for each in self._parameters() if each.requires_grad}
        self._synchronized, self._should_synchronize = False, True
        self._groups = self._divided(groups)
        self._group_of = {id(each): number for number, group in enumerate(self._groups) for each in group}
        self._come: Counter[int] = Counter()
        self._backward = -1  # id of the last backward
        self._hooks: list[Any] = []
        # A rank outside of the process set trains alone.
        if process_set.included() and (size() > 1 or engine().place.is_elastic):
            for parameter in self._parameters():
                if parameter.requires_grad:
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(self._accumulated))

    def _parameters(self) -> Iterator[torch.Tensor]:
        groups: Any = vars(self)["param_groups"]
        for group in groups:
            yield from group["params"]

    def _divided(self, groups: Any) -> list[list[torch.Tensor]]:
        """Split the trained parameters into groups; neighbours become ready together."""
        if not groups:
            return []
        trained = [each for each in self._parameters() if each.requires_grad]
        if not isinstance(groups, int):
            known = {id(each) for each in trained}
            return [[each for each in group if id(each) in known] for group in groups]
        share = -(-len(trained) // (min(groups, len(trained)) or 1))
        return [trained[start : start + share] for start in range(0, len(trained), share)]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduce gradients after this number of backwards from now on."""
        self.backward_passes_per_step = passes
        self._delay = dict.fromkeys(self._delay, passes)

    def _accumulated(self, parameter: torch.Tensor) -> None:
        key = id(parameter)
        if key in self._handles and self._delay[key] <= 0:
            raise AssertionError(
                f"there were more backwards than backward_passes_per_step={self.backward_passes_per_step} "
                "before step(); give DistributedOptimizer as many as your loop accumulates [R719]"
            )
        self._delay[key] -= 1
        if self._delay[key] == 0:
            self._send(parameter)
            backward = current_graph_task_id()
            if backward != self._backward:
                self._backward = backward
                engine: Any = execution_engine
                engine.queue_callback(ops.release)  # at the end of backward

    def _send(self, parameter: torch.Tensor) -> None:
        number = self._group_of.get(id(parameter))
        if number is None:
            self._handles[id(parameter)] = self._reduce([parameter])
            return
        self._handles[id(parameter)] = (None, None)  # sent with the last gradient of the group
        self._come[number] += 1
        if self._come[number] == len(self._groups[number]):
            self._handles[id(parameter)] = self._reduce(self._groups[number], f"group.{number}")

    def _reduce(self, parameters: Sequence[torch.Tensor], name: str | None = None) -> tuple[Any, Any]:
        """Start to reduce gradients; return a handle and the data to finish it.

        The handle of a sparse gradient is a function.
        """
        before, after = 1.0, 1.0
        if self.op == Average and self.gradient_predivide_factor != 1.0:
            before, after = 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor
        for each in parameters:
            if each.grad is None:
                each.grad = torch.zeros_like(each)
            if each.grad.is_sparse and self.sparse_as_dense:
                each.grad = each.grad.to_dense()
        gradients: list[torch.Tensor] = [each.grad for each in parameters]  # type: ignore[misc]
        if gradients[0].is_sparse:
            label = self._parameter_names.get(parameters[0], "sparse")
            done = ops.sparse_allreduce_async(gradients[0], label, self.op, self.process_set)
            return done, (parameters, None)
        sent = [self._compression.compress(each) for each in gradients]
        tensors = [each for each, _ in sent]
        if name is None:
            label = self._parameter_names.get(parameters[0])
            handle = ops.allreduce_held_(tensors[0], label, self.op, before, after, self.process_set)
            if tensors[0].is_cuda:  # Python runs ahead of the device: messages are free
                ops.release()
        else:
            handle = ops.grouped_allreduce_async_(
                tensors,
                name=name,
                op=self.op,
                prescale_factor=before,
                postscale_factor=after,
                process_set=self.process_set,
            )
        return handle, (parameters, [context for _, context in sent])

    def send_missing(self) -> None:
        """Start to reduce all gradients not yet sent; missing ones count as zeros."""
        for parameter in self._parameters():
            if parameter.requires_grad and id(parameter) not in self._handles:
                self._send(parameter)
        ops.release()

    def synchronize(self) -> None:
        """Wait for all gradients; missing ones count as zeros."""
        if not self._hooks:
            self._synchronized = True
            return
        self.send_missing()
        for handle, what in list(self._handles.values()):
            if handle is None:
                continue
            parameters, contexts = what
            found = handle() if callable(handle) else synchronize(handle)
            results = found if isinstance(found, list) else [found]
            for place, (parameter, result) in enumerate(zip(parameters, results, strict=True)):
                if contexts is None:
                    parameter.grad = result
                else:
                    whole = self._compression.decompress(result, contexts[place])
                    if whole.data_ptr() != parameter.grad.data_ptr():
                        parameter.grad.copy_(whole)
        self._forget()
        self._synchronized = True

    def _forget(self) -> None:
        """Reset the state of a step's gradients."""
        self._handles.clear()
        self._come.clear()
        self._delay = dict.fromkeys(self._delay, self.backward_passes_per_step)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state after dropping pending gradients, as after a failed collective."""
        for handle, _ in self._handles.values():
            if isinstance(handle, int):
                ops.give_up(handle)
        self._forget()
        self._synchronized = False
        plain: Any = super()
        plain.load_state_dict(state_dict)

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make `step` skip `synchronize` inside the `with` block, after an explicit call."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "step() reduces the gradients once more after synchronize(); call it inside "
                    "`with optimizer.skip_synchronize():` [R719]",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        plain: Any = super()
        return plain.step(closure)

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        if self._handles:
            raise AssertionError(
                "zero_grad() was called while gradients are being reduced; call it after step() or "
                "synchronize() [R719]"
            )
        plain: Any = super()
        return plain.zero_grad(*args, **kwargs)


class _Adding:
    """A mixin that combines updates, not gradients, by Adasum."""

    def _begin(self, compression: Any) -> None:
        self._compression = compression

    def synchronize(self) -> None:
        """No-op: `step` combines the updates."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError(
            "under op=Adasum updates are exchanged by step(): so synchronize() cannot be skipped [R719]"
        )
        yield

    def step(self, closure: Any = None) -> Any:
        parameters = [each for group in vars(self)["param_groups"] for each in group["params"]]
        trained = [each for each in parameters if each.requires_grad]
        before = [each.detach().clone() for each in trained]
        plain: Any = super()
        loss = plain.step(closure)
        with torch.no_grad():
            sent = [self._compression.compress(each - old) for each, old in zip(trained, before, strict=True)]
            handle = ops.grouped_allreduce_async_([each for each, _ in sent], op=Adasum)
            added = synchronize(handle)
            for parameter, old, update, (_, context) in zip(trained, before, added, sent, strict=True):
                parameter.copy_(old + self._compression.decompress(update, context))
        return loss


def DistributedOptimizer(  # noqa: PLR0913 - Horovod's name and arguments
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Wrap an optimizer so that it reduces gradients over ranks. The result has a subclass of its class, with
    the same groups and state.

    Args:
        named_parameters: names and parameters of the whole optimizer; ranks match tensors by name.
        backward_passes_per_step: number of backwards that accumulate before a reduction.
        gradient_predivide_factor: divisor of gradients before the sum; the sum is divided by the rest.
        groups: number of groups of parameters that are reduced together, or lists of these parameters.
        sparse_as_dense: whether sparse gradients are converted to dense ones.
        process_set: ranks that reduce gradients among themselves; other ranks train alone.

    With op=Adasum, `step` exchanges whole updates as one group after any number of backwards;
    `backward_passes_per_step`, `groups` and `sparse_as_dense` then have no effect.

    Raises:
        ValueError: names are missing or duplicated, or options are incompatible.
    """
    named = _checked_names(optimizer, named_parameters)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor goes with op=Average only [R720]")
    if num_groups:
        warnings.warn(
            "groups=N and num_groups mean the same; give one of them [R720]", DeprecationWarning, stacklevel=2
        )
        groups = groups or num_groups
    if groups is not None and not isinstance(groups, int) and not isinstance(groups, (list, tuple)):
        raise ValueError(f"groups={groups!r}: give a number, or lists of parameters [R720]")
    added = _Adding if op == Adasum else _Reducing
    kind = type(optimizer)
    made: Any = object.__new__(type(kind.__name__, (added, kind), {}))
    made.__dict__.update(optimizer.__dict__)
    made._parameter_names = {parameter: name for name, parameter in named}
    if op == Adasum:
        if process_set is not global_process_set:
            raise NotImplementedError("op=Adasum works on all ranks only; leave out process_set [R717]")
        made._begin(compression)
        return made
    made._begin(
        compression, backward_passes_per_step, op, gradient_predivide_factor, groups, process_set,
        sparse_as_dense=sparse_as_dense,
    )  # fmt: skip
    return made


def _checked_names(optimizer: torch.optim.Optimizer, named: Any) -> list[tuple[str, torch.Tensor]]:
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if named is None:
        # Prefixed, so as not to collide with "noname.N" of unnamed tensors.
        return [
            (f"allreduce.noname.{number}.{place}", each)
            for number, group in enumerate(optimizer.param_groups)
            for place, each in enumerate(group["params"])
        ]
    given = list(named)
    if any(not isinstance(each, tuple) for each in given):
        raise ValueError("named_parameters are pairs of name and parameter: model.named_parameters() [R720]")
    names = [name for name, _ in given]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"named_parameters has a name twice: {', '.join(twice)} [R720]")
    known = {id(each) for _, each in given}
    missing = [place for place, each in enumerate(parameters) if id(each) not in known]
    if missing:
        raise ValueError(
            f"named_parameters lacks {len(missing)} of the optimizer's parameters, the first of shape "
            f"{list(parameters[missing[0]].shape)}; give model.named_parameters() of the whole model [R720]"
        )
    return given
