"""Decomposes composite operations into the operations that they call.

In inference mode, and for tensors made there, torch dispatches them as one operation: a mode then sees
`type_as`, which uses only the type of its second operand, or `reshape`, whose result may be a view or a copy.
A higher-order operation (`flex_attention`, `scan`) is also dispatched as one if it is not compiled.
"""

from __future__ import annotations

from typing import Any

from ronde.patching.torch_internals import DispatchKey, HigherOrderOperator, TorchDispatchMode, has_kernel

__all__ = ["carry_out", "is_made_of_others", "takes_functions"]

# The dispatch key of kernels that call other operations.
_OF_OTHERS: Any = DispatchKey.CompositeImplicitAutograd


def is_made_of_others(func: Any) -> bool:
    """Return whether an operation is composite: carried out by calling others."""
    return (
        takes_functions(func)
        if isinstance(func, HigherOrderOperator)
        else has_kernel(func.name(), _OF_OTHERS)
    )


def takes_functions(func: Any) -> bool:
    """Return whether this is a higher-order operator with an eager kernel.

    The operations that it calls are dispatched separately.
    """
    return isinstance(func, HigherOrderOperator) and DispatchKey.CompositeExplicitAutograd in func.py_kernels


def carry_out(mode: TorchDispatchMode, func: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """Carry out a composite operation so that `mode` sees each part."""
    # Not `with mode`, since its class may override `__enter__`.
    TorchDispatchMode.__enter__(mode)
    try:
        if isinstance(func, HigherOrderOperator):
            return func.py_kernels[DispatchKey.CompositeExplicitAutograd](*args, **(kwargs or {}))
        # Not `func.decompose`, which for recurrent layers is a function of torch's compiler without dropout.
        return func._op_dk(_OF_OTHERS, *args, **(kwargs or {}))
    finally:
        TorchDispatchMode.__exit__(mode, None, None, None)
