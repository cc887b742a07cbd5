"""Compilation of loops over rows by numba.

Compiled code is cached next to the source (or in `NUMBA_CACHE_DIR`), runs without the GIL, and checks no
bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ronde.errors import UsageError

try:
    import numba
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic
except ImportError as error:
    raise UsageError(
        f"embedding tables need numba, which cannot be imported ({error}): pip install 'ronde[server]' [R460]"
    ) from None

__all__ = ["compiled", "inlined", "prefetch"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile a function of arrays and numbers at its first call; cached on disk."""
    jit: Any = numba.njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")
    return jit(function)


def inlined(function: _Function) -> _Function:
    """Compile a small function inline into its callers."""
    jit: Any = numba.njit(inline="always", error_model="numpy")
    return jit(function)


def _prefetch(typing_context: Any, array: Any, index: Any, column: Any) -> Any:
    """Prefetch the cache line of `array[i, j]`, or of `array[i]`.

    A table's rows lie all over memory, and a cache miss costs 100 ns. A loop that prefetches a hundred rows
    before reading them waits only about once.
    """
    del typing_context
    signature = types.void(array, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, arguments[0])
        place = arguments[1 : 1 + kind.ndim]
        pointer = cgutils.get_item_pointer(context, builder, kind, view, place, wraparound=False)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        shape = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
        read, keep_in_all_caches, data = ir.Constant(word, 0), ir.Constant(word, 3), ir.Constant(word, 1)
        builder.call(function, [builder.bitcast(pointer, byte), read, keep_in_all_caches, data])
        return context.get_dummy_value()

    return signature, generate


prefetch: Any = intrinsic(_prefetch)
