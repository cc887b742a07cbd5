"""A model's computation as a `torch.export` program that looks up rows by table name.

Tables are replaced before the export by an operation, `ronde::look_up`, which takes the table's name and
finds rows in the version that is served.

`torch.export.load` evaluates expressions in the file and may unpickle: trust a program only as far as the
script that made it.
"""

from __future__ import annotations

import inspect
import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ronde.errors import RondeError
from ronde.patching.torch_internals import pytree
from ronde.rowwise.generators import States
from ronde.rowwise.undo import ContainerSnapshot
from ronde.server.embedding_table import EmbeddingTable
from ronde.server.serving.durable import DamagedFile

__all__ = ["Example", "Input", "NoProgram", "Program", "Unfit", "export", "tables_of", "without_tables"]

LookUp = Callable[[str, torch.Tensor], torch.Tensor]
_looks_up: ContextVar[LookUp] = ContextVar("looks_up")


class NoProgram(RondeError):
    """Raised when torch cannot export this model. The message holds torch's reason."""


class Unfit(RondeError):
    """Raised when inputs do not fit the model."""


@torch.library.custom_op("ronde::look_up", mutates_args=())
def _look_up(ids: torch.Tensor, table: str, dim: int, double: bool) -> torch.Tensor:
    """Return rows [..., dim] of ids, int64 [...]."""
    del dim, double
    return _looks_up.get()(table, ids)


@_look_up.register_fake
def _(ids: torch.Tensor, table: str, dim: int, double: bool) -> torch.Tensor:
    del table
    return ids.new_empty((*ids.shape, dim), dtype=torch.float64 if double else torch.float32)


@torch.library.custom_op("ronde::pool", mutates_args=())
def _pool(rows: torch.Tensor, offsets: torch.Tensor, mean: bool) -> torch.Tensor:
    """Pool rows [n, dim] into bags [bags, dim], as `EmbeddingTable` does. `offsets`: int64 [bags]."""
    ends = torch.cat([offsets[1:], offsets.new_tensor([len(rows)])])
    sizes = ends - offsets
    bags = torch.repeat_interleave(torch.arange(len(offsets)), sizes)
    sums = rows.new_zeros(len(offsets), rows.shape[1]).index_add(0, bags, rows)
    return sums / sizes.clamp(min=1).unsqueeze(1) if mean else sums


@_pool.register_fake
def _(rows: torch.Tensor, offsets: torch.Tensor, mean: bool) -> torch.Tensor:
    del mean
    return rows.new_empty((offsets.shape[0], rows.shape[1]))


class _CutOut(nn.Module):
    """A replacement of a table in the model to export, without parameters and rows."""

    def __init__(self, name: str, table: EmbeddingTable) -> None:
        super().__init__()
        self.name, self.dim, self.pooling = name, table.dim, table.pooling
        self.is_double = table.anchor.dtype == torch.float64
        self.training = table.training

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        ids = ids.to(torch.int64)
        rows = torch.ops.ronde.look_up(ids, self.name, self.dim, self.is_double)
        if offsets is None:
            return rows
        return torch.ops.ronde.pool(rows, offsets.to(torch.int64), self.pooling == "mean")


def tables_of(model: nn.Module) -> dict[str, EmbeddingTable]:
    """Return a model's tables by the first path to each.

    A model that is itself a table has the name "table".
    """
    found = {name: part for name, part in model.named_modules() if isinstance(part, EmbeddingTable)}
    return {name or "table": part for name, part in found.items()}


@contextmanager
def without_tables(model: nn.Module) -> Iterator[None]:
    """Replace the model's tables by look-ups by name inside the `with` block."""
    cuts = {id(table): _CutOut(name, table) for name, table in tables_of(model).items()}
    places = [
        (parent, name, part)
        for parent in model.modules()
        for name, part in parent._modules.items()
        if part is not None and id(part) in cuts
    ]
    for parent, name, part in places:
        parent._modules[name] = cuts[id(part)]
    try:
        yield
    finally:
        for parent, name, part in places:
            parent._modules[name] = part


@dataclass(frozen=True)
class Example:
    """The arguments of a model's call, without the tensors' values.

    Attributes:
        leaves: shape and dtype of each tensor; the value of numbers and strings; else the type's name.
        spec: the pytree structure of the arguments.
    """

    leaves: tuple[Any, ...]
    spec: Any

    @classmethod
    def of(cls, args: Any, kwargs: Any) -> Example:
        """Make the example of a call. It keeps no tensors."""
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        return cls(tuple(map(_empty, leaves)), spec)

    def arguments(self) -> tuple[Any, Any, Any]:
        """Return zero-filled arguments, keyword arguments, and their dynamic axes.

        Axis 0 of each tensor is dynamic unless its size is 1.
        """
        args, kwargs = pytree.tree_unflatten([_made(leaf) for leaf in self.leaves], self.spec)
        axes = [{0: torch.export.Dim.AUTO} if _varies(leaf) else None for leaf in self.leaves]
        by_args, by_kwargs = pytree.tree_unflatten(axes, self.spec)
        return args, kwargs, (by_args, by_kwargs)


@dataclass(frozen=True)
class _Empty:
    """A tensor without values."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class _Unknown:
    """The type of a leaf that is not kept."""

    name: str


def _empty(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _Empty(tuple(leaf.shape), leaf.dtype)
    plain = isinstance(leaf, (bool, int, float, str, torch.dtype, torch.device, type(None)))
    return leaf if plain else _Unknown(type(leaf).__name__)


def _made(leaf: Any) -> Any:
    return torch.zeros(leaf.shape, dtype=leaf.dtype) if isinstance(leaf, _Empty) else leaf


def _varies(leaf: Any) -> bool:
    return isinstance(leaf, _Empty) and len(leaf.shape) > 0 and leaf.shape[0] > 1


def export(model: nn.Module, example: Example) -> bytes:
    """Export a model in evaluation mode, with its present parameters, by `torch.export`.

    The model and the random generators are restored: only one rank exports, and side effects would make it
    diverge from the others.

    Raises:
        NoProgram: torch cannot export the model, for instance because it branches on values.
    """
    unknown = next((leaf for leaf in example.leaves if isinstance(leaf, _Unknown)), None)
    if unknown is not None:
        raise NoProgram(f"it is called with a {unknown.name}, which torch.export cannot take apart [R734]")
    held = ContainerSnapshot.by(model)
    generators = States.of_hosts(held.generators), States.of_torch(())
    args, kwargs, axes = example.arguments()
    try:
        model.eval()
        for part in model.modules():
            part._compiled_call_impl = None
        with without_tables(model), torch.no_grad():
            shapes = _by_name(model, *axes)
            program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
    except Exception as error:  # whatever a model raises when it is called in this way
        raise NoProgram(" ".join(str(error).split("\n\n")[0].split())[:500] or type(error).__name__) from None
    finally:
        held.restore()
        for states in generators:
            states.restore()
    return buffer.getvalue()


def _by_name(model: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """Map arguments to the parameter names of the model's forward."""
    return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)


@dataclass(frozen=True)
class Input:
    """An input of a program.

    Attributes:
        name: name of the input; `features_0` is the first of a list `features`.
        dtype: torch's name, such as "float32"; "" for a non-tensor, which is always `value`.
        shape: sizes; None for a dynamic axis.
        value: the constant of a non-tensor input.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    value: Any = None

    def tensor(self, given: Any) -> torch.Tensor:
        """Convert a value to a tensor of this dtype and shape.

        Raises:
            Unfit: the value does not fit.
        """
        dtype = getattr(torch, self.dtype)
        wanted = f"{self.dtype} of shape {list(self.shape)}".replace("None", "any")
        if not isinstance(given, torch.Tensor):
            try:
                whole = torch.tensor(given)
                # JSON numbers are doubles, which torch would convert to its default dtype.
                given = torch.tensor(given, dtype=torch.float64) if whole.is_floating_point() else whole
            except (ValueError, TypeError, RuntimeError, OverflowError):
                raise Unfit(f"input {self.name} is not an array of numbers; it is {wanted} [R744]") from None
        if given.numel() == 0:
            given = given.to(dtype)
        lossy = given.is_floating_point() and not dtype.is_floating_point
        if lossy or (given.is_complex() and not dtype.is_complex):
            raise Unfit(f"input {self.name} has {str(given.dtype)[6:]} values; it is {wanted} [R744]")
        fits = given.dim() == len(self.shape) and all(
            own is None or own == size for own, size in zip(self.shape, given.shape, strict=True)
        )
        if not fits:
            raise Unfit(f"input {self.name} has the shape {list(given.shape)}; it is {wanted} [R744]")
        return given.to(dtype)


class Program:
    """An exported program, callable with the parameters and rows of any version.

    Args:
        path: a file that `export` made.

    Raises:
        DamagedFile: torch cannot load the file.

    Attributes:
        inputs: the inputs in order, each an `Input`.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._program = torch.export.load(path)
        except Exception as error:
            raise DamagedFile(f"{path} is not a program that this torch can load: {error} [R742]") from None
        self._module = self._program.module()
        self._lock = threading.Lock()
        self.inputs = tuple(_inputs(self._program))

    def predict(
        self, given: Mapping[str, Any] | Sequence[Any], dense: Mapping[str, torch.Tensor], look_up: LookUp
    ) -> Any:
        """Call the model, in evaluation and without gradients.

        Args:
            given: inputs by name, or all in order: tensors, or nested lists of numbers.
            dense: parameters and buffers by name.
            look_up: function of a table's name and ids (int64 of any shape), which returns [..., dim].

        Returns:
            The model's outputs.

        Raises:
            Unfit: the model does not accept these inputs.
        """
        leaves = self._leaves(given)
        spec: Any = self._program.call_spec.in_spec
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        token = _looks_up.set(look_up)
        try:
            # functional_call swaps parameters into the shared module: one call at a time.
            with self._lock, torch.inference_mode():
                return torch.func.functional_call(self._module, dict(dense), args, kwargs)
        except (RuntimeError, AssertionError, IndexError, ValueError) as error:
            raise Unfit(
                f"the model cannot take these inputs: {' '.join(str(error).split())[:300]} [R744]"
            ) from None
        finally:
            _looks_up.reset(token)

    def save(self, path: Path, dense: Mapping[str, torch.Tensor]) -> None:
        """Save the program with these parameters, for `torch.export.load`."""
        for name, value in self._program.state_dict.items():
            if name in dense:
                value.data.copy_(dense[name])
        torch.export.save(self._program, path)

    def _leaves(self, given: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        tensors = [each for each in self.inputs if each.dtype]
        names = ", ".join(each.name for each in tensors)
        if not isinstance(given, Mapping):
            if len(given) != len(tensors):
                raise Unfit(f"{len(given)} inputs were given; the model takes {len(tensors)}: {names} [R744]")
            given = {each.name: value for each, value in zip(tensors, given, strict=True)}
        unknown = sorted(set(given) - {each.name for each in tensors})
        if unknown:
            raise Unfit(f"there is no input {unknown[0]}; the model takes {names} [R744]")
        missing = [each.name for each in tensors if each.name not in given]
        if missing:
            raise Unfit(f"input {missing[0]} is missing; the model takes {names} [R744]")
        return [each.tensor(given[each.name]) if each.dtype else each.value for each in self.inputs]


def _inputs(program: torch.export.ExportedProgram) -> Iterator[Input]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind != torch.export.graph_signature.InputKind.USER_INPUT:
            continue
        name = getattr(spec.arg, "name", "")
        value = values.get(name)
        if isinstance(value, torch.Tensor):
            shape = tuple(size if isinstance(size, int) else None for size in value.shape)
            yield Input(name, str(value.dtype)[6:], shape)
        else:
            yield Input(name, "", (), getattr(spec.arg, "value", value))
