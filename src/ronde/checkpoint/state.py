"""State of a run at one step: taken from a script's objects, and restored.

Values are those of one device, for any plan: a sharded parameter is whole here. So a state fits a run under
another plan, or on another number of ranks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.checkpoint.journal import Mismatch
from ronde.checkpoint.script_state import CapturedState
from ronde.comm.device_library import is_on_accelerator

__all__ = ["HostCopies", "State", "Unchanged", "mean_over_ranks", "put_back", "take"]

State = dict[str, Any]

_GRADIENT = ".grad"
_LARGE_BYTES = 1 << 20
_ALONE = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (bool, int, float, str, type(None))


class Unchanged:
    """Large tensors from before training, such as a data set.

    A replayed script creates them again, so they are not saved.

    Args:
        held: objects of the script before the first call of a model.
    """

    def __init__(self, held: CapturedState) -> None:
        trained = {id(value) for module in held.modules.values() for value in _values_of(module)}
        self._known = {
            id(value): (weakref.ref(value), value._version)
            for value in held.tensors.values()
            if id(value) not in trained
            and not value.requires_grad
            and not value.is_inference()
            and value.numel() * value.element_size() >= _LARGE_BYTES
        }

    def __contains__(self, value: torch.Tensor) -> bool:
        """Return whether a value is a known tensor that has not changed since."""
        known = self._known.get(id(value))
        return known is not None and known[0]() is value and known[1] == value._version


class HostCopies:
    """Copies in reused host memory: new memory costs as much time as the copy.

    Tensors on a CUDA device are copied to pinned memory, one after the other; `settle` waits for them.
    """

    def __init__(self) -> None:
        self._memory: dict[str, torch.Tensor] = {}
        self._devices: set[torch.device] = set()

    @property
    def nbytes(self) -> int:
        """Return the bytes of all copies."""
        return sum(each.numel() * each.element_size() for each in self._memory.values())

    def of(self, name: str, value: torch.Tensor) -> torch.Tensor:
        copy = self._memory.get(name)
        if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
            copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=is_on_accelerator(value))
            self._memory[name] = copy
        if is_on_accelerator(value):
            self._devices.add(value.device)
        return copy.copy_(value, non_blocking=is_on_accelerator(value))

    def settle(self) -> None:
        """Wait for copies under way."""
        for device in self._devices:
            torch.accelerator.synchronize(device)
        self._devices.clear()


def take(
    held: CapturedState,
    whole: Callable[[Any], Any],
    unchanged: Unchanged,
    copies: HostCopies | None,
    *,
    with_rows: bool = True,
) -> State:
    """Take the state; called by all ranks, as shards are gathered.

    Args:
        whole: gathers a sharded value.
        copies: storage of the copies; None: this rank keeps nothing, and the state is empty.
        with_rows: whether to include the rows of embedding tables; else another rank has them.
    """
    tensors: dict[str, torch.Tensor] = {}
    left: list[str] = []
    for name, value in held.tensors.items():
        if value in unchanged or value.is_meta:
            left.append(name)
            continue
        plain = whole(value.detach())
        if copies is not None:
            tensors[name] = copies.of(name, plain) if plain.layout is torch.strided else plain.cpu()
    optimizers: dict[str, Any] = {}
    for name, optimizer in held.optimizers.items():
        state = optimizer.state_dict()["state"]
        if copies is not None:
            optimizers[name] = _copied(copies, name, state)
    # Embedding tables, and other modules with more than tensors; gathered where rows are spread over ranks.
    extra = {
        name: module.get_extra_state()
        for name, module in held.modules.items()
        if _has_extra(module) and (with_rows or not _is_table(module))
    }
    pending: dict[str, Any] = {
        name: module.gradients_of_ranks()  # pyright: ignore[reportCallIssue] - of a table
        for name, module in held.modules.items()
        if _is_table(module)
    }
    if copies is None:
        return {}
    copies.settle()
    return {
        "models": _models(held),
        "tensors": tensors,
        "left": left,
        "optimizers": optimizers,
        "attributes": {
            name: _plain_attributes(value) for name, value in {**held.modules, **held.optimizers}.items()
        },
        "generators": {name: value.get_state() for name, value in held.generators.items()},
        "extra": extra,
        "pending": pending,
    }


def mean_over_ranks(states: Sequence[State], held: CapturedState) -> State:
    """Combine the states of ranks that train by themselves into one model.

    Parameters, buffers and the state of optimizers are means; the rest, such as rates, is rank 0's.

    Args:
        states: state of each rank.
        held: objects of rank 0's script.
    """
    ours = {id(value) for module in held.modules.values() for value in _values_of(module)}
    trained = {
        name
        for name, value in held.tensors.items()
        if id(value) in ours or (value.requires_grad and value.is_leaf)
    }
    first = states[0]
    tensors = {
        name: _mean([state["tensors"].get(name) for state in states])
        if name.removesuffix(_GRADIENT) in trained
        else value
        for name, value in first["tensors"].items()
    }
    return {**first, "tensors": tensors, "optimizers": _mean([state["optimizers"] for state in states])}


def _mean(values: Sequence[Any]) -> Any:
    """Average tensors, one by one in dicts and lists.

    Where they differ in form, the first value is taken.
    """
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        return first
    if isinstance(first, torch.Tensor):
        alike = all(
            (each.shape, each.dtype, each.layout) == (first.shape, first.dtype, first.layout)
            for each in values
        )
        if not alike or not first.is_floating_point():
            return first
        total = first.to(torch.float64, copy=True)
        for value in values[1:]:
            total += value
        return total.div_(len(values)).to(first.dtype)
    if isinstance(first, dict):
        missing = object()
        return {key: _mean([value.get(key, missing) for value in values]) for key in first}
    if type(first) in (list, tuple) and all(len(value) == len(first) for value in values):
        return type(first)(_mean(each) for each in zip(*values))
    return first


def _models(held: CapturedState) -> dict[str, dict[str, str]]:
    """Map each outermost model to its `state_dict` keys, with the names of their tensors."""
    names = {id(value): name for name, value in held.tensors.items()}
    models: dict[str, dict[str, str]] = {}
    inner = {id(part) for module in held.modules.values() for part in module.modules() if part is not module}
    for name, module in held.modules.items():
        if id(module) in inner:
            continue
        keys: dict[str, str] = {}
        for prefix, part in module.named_modules(remove_duplicate=False):
            lost = part._non_persistent_buffers_set
            values = {
                **part._parameters,
                **{key: each for key, each in part._buffers.items() if key not in lost},
            }
            for key, value in values.items():
                if value is not None and id(value) in names:
                    keys[f"{prefix}.{key}" if prefix else key] = names[id(value)]
        models[name] = keys
    return models


def put_back(held: CapturedState, state: State, whole: Callable[[Any], Any]) -> None:
    """Restore the script's objects from a state; called by all ranks.

    Raises:
        Mismatch: the script has other objects than before.
    """
    saved, left = state["tensors"], set(state["left"])
    for name, value in saved.items():
        if not name.endswith(_GRADIENT):
            _put_tensor(held, name, value, whole)
    for name, value in saved.items():
        if name.endswith(_GRADIENT):
            owner = held.tensors.get(name.removesuffix(_GRADIENT))
            if owner is None:
                raise _other(name)
            owner.grad = value.to(owner.device, copy=True)
    for name in held.tensors.keys() - saved.keys() - left:
        if not name.endswith(_GRADIENT):
            raise Mismatch(f"it has {name}, which the checkpoint does not have [R514]")
        held.tensors[name.removesuffix(_GRADIENT)].grad = None
    for name, value in state["optimizers"].items():
        if name not in held.optimizers:
            raise _other(name)
        _put_optimizer(held.optimizers[name], value)
    for name, value in state["extra"].items():
        if name not in held.modules:
            raise _other(name)
        held.modules[name].set_extra_state(value)
    for name, value in state.get("pending", {}).items():
        keep = getattr(held.modules.get(name), "keep_gradients", None)  # of a table
        if keep is None:
            raise _other(name)
        keep(value)
    owners: dict[str, Any] = {**held.modules, **held.optimizers}
    for name, attributes in state["attributes"].items():
        if name in owners:
            for key, value in attributes.items():
                if getattr(owners[name], key, None) != value:
                    owners[name].__dict__[key] = value
    for name, value in state["generators"].items():
        if name not in held.generators:
            raise _other(name)
        held.generators[name].set_state(value)


def _put_tensor(held: CapturedState, name: str, value: torch.Tensor, whole: Callable[[Any], Any]) -> None:
    target = held.tensors.get(name)
    if target is None:
        # State that a module keeps of a call that was not repeated.
        owner, _, attribute = name.rpartition(".")
        module = held.modules.get(owner)
        if module is None:
            raise _other(name)
        setattr(module, attribute, value.clone())
        return
    if target.shape != value.shape or target.dtype != value.dtype:
        raise Mismatch(
            f"{name} is {target.dtype} {list(target.shape)}, and was {value.dtype} {list(value.shape)} [R514]"
        )
    with torch.no_grad():
        # A batch has its values already, and a write would gather it.
        if type(target) in _ALONE or not torch.equal(whole(target.detach()), value.to(target.device)):
            target.data.copy_(value)


def _put_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    groups = optimizer.param_groups
    own = [dict(group) for group in groups]
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    # Loading makes new groups, and a script may keep the ones it has.
    for group, values in zip(groups, own):
        group.update(values)
    optimizer.param_groups = groups


def _copied(copies: HostCopies, name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return copies.of(name, value) if value.layout is torch.strided else value.cpu()
    if isinstance(value, dict):
        return {key: _copied(copies, f"{name}/{key}", item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(copies, f"{name}/{index}", item) for index, item in enumerate(value))
    return value


def _plain_attributes(value: Any) -> dict[str, Any]:
    return {key: item for key, item in vars(value).items() if isinstance(item, _PLAIN)}


def _has_extra(module: torch.nn.Module) -> bool:
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def _is_table(module: torch.nn.Module) -> bool:
    return hasattr(module, "gradients_of_ranks")


def _values_of(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _other(name: str) -> Mismatch:
    return Mismatch(f"it no longer has {name} [R514]")
