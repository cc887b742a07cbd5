"""Fields of requests to servers, in the `meta` of messages, with types and limits.

A server logs the fields of the form alone, so that what is replayed after a restart has been checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

__all__ = [
    "AddGradients",
    "DtypeName",
    "Group",
    "Keys",
    "OptimizerName",
    "PullRows",
    "PushStep",
    "PutRows",
    "ScaleGradients",
    "Step",
    "StepRecord",
    "Update",
    "Values",
    "fields_of",
    "read_form",
]

DtypeName = Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8"]
OptimizerName = Literal[
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "Adadelta", "ASGD", "Rprop"
]
Key = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Keys(msgspec.Struct, kw_only=True):
    """Distinct keys of parameters."""

    keys: list[Key]

    def __post_init__(self) -> None:
        if len(set(self.keys)) < len(self.keys):
            raise ValueError("a key comes twice")


class Values(Keys, kw_only=True):
    """Values of several keys, concatenated in one array.

    Attributes:
        sizes: number of elements of each key.
        dtype: their dtype; bfloat16 travels as bytes.
    """

    sizes: list[Size]
    dtype: DtypeName

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.sizes) != len(self.keys):
            raise ValueError("there is a size for each key")


class AddGradients(Values, kw_only=True):
    """Gradients to be averaged over workers, and added.

    Attributes:
        fresh: whether the gradient of each key replaces the present one.
    """

    fresh: list[int | bool]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.fresh) != len(self.keys):
            raise ValueError("fresh has a word for each key")


class PushStep(Values, kw_only=True):
    """Gradients, and the optimizer that steps with their sum.

    Attributes:
        optimizer: number of the optimizer.
        kind: its class in `torch.optim`.
        options: its hyper-parameters.
    """

    optimizer: Number
    kind: OptimizerName = msgspec.field(name="class")
    options: dict[str, Any]


class ScaleGradients(Keys, kw_only=True):
    """Factor for the gradients of some keys."""

    factor: float


class PullRows(Keys, kw_only=True):
    """Rows of one key's value, which is seen as [rows, dim]."""

    dim: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]


class Group(Keys, kw_only=True):
    """Group of parameters with its hyper-parameters."""

    options: dict[str, Any]


SentValue = tuple[Key, Literal["value", "gradient"], DtypeName, Size]
StateEntry = tuple[Key, str, DtypeName | None, bool | int | float | None]


class _Stepping(msgspec.Struct, kw_only=True):
    optimizer: Number
    kind: OptimizerName = msgspec.field(name="class")
    groups: list[Group]
    anew: bool | int
    default: DtypeName
    state: list[StateEntry]

    def __post_init__(self) -> None:
        keys = [key for group in self.groups for key in group.keys]
        if len(set(keys)) < len(keys):
            raise ValueError("a key comes in two groups")


class Step(_Stepping, kw_only=True):
    """A worker's request for a step of an optimizer.

    Attributes:
        anew: whether the optimizer begins without the state that is there.
        default: torch's default dtype, in which steps are counted.
        values: the missing values and gradients: key, which of both, dtype and size of each array.
        state: entries of the optimizer's state: key, name, dtype of a tensor, value of a number.
    """

    values: list[SentValue]


class StepRecord(_Stepping, kw_only=True):
    """A step that is merged from the requests of all workers."""

    values: list[tuple[Key, Literal["value", "gradient"], DtypeName, None]]


class Update(msgspec.Struct, kw_only=True):
    """Gradients of rows of a table.

    Attributes:
        lr: learning rate; None: that of the table.
    """

    table: Number
    lr: float | None


class PutRows(msgspec.Struct, kw_only=True):
    """Rows with their state, an array for each entry."""

    table: Number
    entries: list[str]


_Form = TypeVar("_Form", bound=msgspec.Struct)


def read_form(form: type[_Form], meta: Mapping[str, Any]) -> _Form:
    """Read the fields of a form; unknown ones are ignored.

    Raises:
        ValueError: a field is missing, or has another type or range.
    """
    try:
        return msgspec.convert(meta, form)
    except msgspec.ValidationError as error:
        raise ValueError(f"{error} [R430]") from None


def fields_of(form: msgspec.Struct) -> dict[str, Any]:
    """Return the fields as JSON values."""
    return msgspec.to_builtins(form)
