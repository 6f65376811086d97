"""numba as the word-vector kernels use it: compiled once, kept on disk, free of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bertkit.errors import UserError

try:
    from llvmlite import ir
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic
except ImportError as problem:
    raise UserError("Training word vectors needs the package numba. Run: pip install 'bertkit[vectors]'") from problem

STRIDE = np.uint64(0x9E3779B97F4A7C15)
LINE = 16  # float32 numbers in a cache line; rows of matrices are padded to whole lines


def kernel(function: Callable[..., Any]) -> Any:
    """Compile at the first call. Bounds are not checked: the caller vouches for every number."""
    options: dict[str, Any] = {"nogil": True, "fastmath": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder on this machine can hold the cache
        return njit(**options)(function)


@kernel
def scramble(state: Any) -> Any:
    """64 random bits out of a counter that grows by STRIDE (splitmix64)."""
    bits = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _fetch(context: Any, matrix: Any, place: Any) -> Any:
    """Ask for the cache line of the number at `place` in a matrix (counted row by row) before it is needed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        number, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        what = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, what, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(data, [arguments[1]]), pointer)
        for_writing, keep_close, data_cache = number(1), number(3), number(1)
        builder.call(prefetch, [address, for_writing, keep_close, data_cache])
        return context.get_dummy_value()

    return types.void(matrix, place), generate


fetch: Any = intrinsic(_fetch)
