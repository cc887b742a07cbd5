"""`horovod.common.util`: build information, and helpers that scripts import from there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ronde.compat.horovod import basics
from ronde.compat.horovod.operations import operation_of

__all__ = [
    "EXTENSIONS", "HorovodVersionMismatchError", "ccl_built", "check_extension", "check_installed_version",
    "ddl_built", "env", "extension_available", "get_average_backwards_compatibility_fun",
    "get_env_rank_and_size", "gloo_built", "gpu_available", "is_iterable", "is_version_greater_equal_than",
    "mpi_built", "nccl_built", "num_rank_is_power_2", "split_list",
]  # fmt: skip

EXTENSIONS = ["tensorflow", "torch", "mxnet"]

Value = TypeVar("Value")


class HorovodVersionMismatchError(ImportError):
    """An error of Horovod for mismatched framework versions; never raised here."""


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Check that the interface of a framework exists.

    Args:
        ext_name: name such as "horovod.torch"; the other arguments name the place of Horovod's build, and are
            ignored.

    Raises:
        ImportError: the framework is not PyTorch.
    """
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(f"{ext_name}: ronde has the PyTorch interface only, horovod.torch [R723]")


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Accept any version of a framework, as nothing is compiled for one."""


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    return ext_base_name == "torch"


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a supported framework has a CUDA device."""
    import torch

    return extension_available(ext_base_name) and torch.cuda.is_available()


def mpi_built(verbose: bool = False) -> bool:
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    return basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    return basics.ccl_built()


def get_env_rank_and_size() -> tuple[int, int]:
    """Return rank and size before `init`; 0 and 1 without a launcher."""
    return int(os.environ.get("HOROVOD_RANK", "0")), int(os.environ.get("HOROVOD_SIZE", "1"))


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables inside the `with` block; None leaves one unchanged."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """Return a function of `op` and the deprecated `average` that selects the operation."""
    return lambda op, average: operation_of(average, op)


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether Adasum supports this number of ranks."""
    return num_rank > 0 and num_rank.bit_count() == 1


def split_list(values: Sequence[Value], parts: int) -> list[Sequence[Value]]:
    """Split a list into consecutive pieces of nearly equal length."""
    share, more = divmod(len(values), parts)
    starts = [place * share + min(place, more) for place in range(parts)]
    return [values[start : start + share + (place < more)] for place, start in enumerate(starts)]


def is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether a version is at least `target`.

    Raises:
        ValueError: `target` is not major.minor.patch, or an argument is not a string.
    """
    from torch.torch_version import TorchVersion

    if not isinstance(ver, str) or not isinstance(target, str) or target.count(".") != 2:
        raise ValueError(
            f"versions {ver!r} and {target!r}: give strings, the second as major.minor.patch [R725]"
        )
    return TorchVersion(ver) >= TorchVersion(target)
