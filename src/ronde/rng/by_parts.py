"""Operations that torch makes of others, carried out by these where it would hand them over as one.

That is so in inference mode, and of what was made there: a mode then sees `type_as`, which takes of its
second operand the type only, or `reshape`, whose result may be a view or a copy, and cannot tell which.
An operation that takes functions (`flex_attention`, `scan`) comes as one too where nothing compiles it.
"""

from __future__ import annotations

from typing import Any

from ronde.patching.torch_internals import DispatchKey, HigherOrderOperator, TorchDispatchMode, has_kernel

__all__ = ["carry_out", "is_made_of_others", "takes_functions"]

# The kernel of an operation that is carried out by calling others.
_OF_OTHERS: Any = DispatchKey.CompositeImplicitAutograd


def is_made_of_others(func: Any) -> bool:
    """Whether an operation is carried out by calling others."""
    return (
        takes_functions(func)
        if isinstance(func, HigherOrderOperator)
        else has_kernel(func.name(), _OF_OTHERS)
    )


def takes_functions(func: Any) -> bool:
    """Whether an operation is given functions, and carried out by calling them: it is nobody's to look at."""
    return isinstance(func, HigherOrderOperator) and DispatchKey.CompositeExplicitAutograd in func.py_kernels


def carry_out(mode: TorchDispatchMode, func: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """Such an operation, by its parts, each of which comes to `mode`, as without inference mode."""
    # Not `with mode`, which may mean more to its class.
    TorchDispatchMode.__enter__(mode)
    try:
        if isinstance(func, HigherOrderOperator):
            return func.py_kernels[DispatchKey.CompositeExplicitAutograd](*args, **(kwargs or {}))
        # Not `func.decompose`: for recurrent layers that is a function of torch's compiler, without dropout.
        return func._op_dk(_OF_OTHERS, *args, **(kwargs or {}))
    finally:
        TorchDispatchMode.__exit__(mode, None, None, None)
