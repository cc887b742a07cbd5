"""Whether ranks were given the same tensors and numbers, by a few numbers of each."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.errors import RondeError
from ronde.tensor.context import Context
from ronde.tensor.global_tensor import GlobalTensor
from ronde.tensor.script_values import KIND_OF_NUMBERS, numbers

__all__ = ["compare_values", "require_alike"]

# Of the sum of all sizes: ranks may compute the same numbers with other roundings. A number of Python's is
# one that was reduced, at most.
_TOLERANCE, _OF_A_NUMBER = 1e-3, 1e-5
# Of single numbers, what may be left of larger ones that were the same but for rounding.
_SLACK = 1e-6
# Of a loss, which may be what is left of larger ones.
_SLACK_OF_LOSSES = 1e-4
_MOST_ROOTS = 4


def _unlike(comm: Comm, values: Sequence[Any]) -> tuple[list[bool], str]:
    """Which of the whole tensors among the values differ between ranks, and what this rank has, in short.

    A collective. Some thousand elements of each are looked at: whole numbers must be the same.
    """
    whole = [each for each in values if isinstance(each, torch.Tensor) and not isinstance(each, GlobalTensor)]
    if not whole:
        return [], ""
    mine = _table(whole).to(comm.control_device)
    flags = _differ(mine, comm.broadcast(mine.clone()))
    return [bool(count) for count in comm.votes(flags)], _short(mine)


def require_alike(comm: Comm, what: str, values: Sequence[Any]) -> None:
    """End the run where ranks were given different tensors.

    Raises:
        DivergedError: with the lines of the script, on one host.
        RondeError: on several.
    """
    flags, digest = _unlike(comm, values)
    if not any(flags):
        return
    comm.mark(f"{what} ({digest})")
    comm.barrier()  # one that came first hears of it here
    raise RondeError(
        "ranks were given different batches, by threads or processes of the script, or by a data set in no "
        "fixed order or with samples that differ at each reading; take the same samples in one order"
    )


def compare_values(context: Context, *roots: Any) -> None:
    """End the run where the script has put other values into its computations on another rank.

    A collective, before a backward of the script's: a value of each rank's own would mix gradients of
    several losses.

    Args:
        roots: what the backward begins with; of a loss that is a plain tensor the value is compared, as
            what went into it has not been noted.

    Raises:
        DivergedError: with the lines of the script, on one host.
        RondeError: on several.
    """
    if not context.script_computes():
        return
    comm, values = context.comm, context.script_values
    rows = [*values.rows(), *_of_roots(list(_plain(roots)))]
    mine = torch.tensor(rows, dtype=torch.float64, device=comm.control_device)
    main = comm.broadcast(mine.clone())
    noted = len(mine) - _MOST_ROOTS
    flags = _differ(mine[:noted], main[:noted], _SLACK)
    flags += _differ(mine[noted:], main[noted:], _SLACK_OF_LOSSES)
    places = [place for place, votes in enumerate(comm.votes(flags)) if votes]
    if places:
        what = values.shown(places[0]) if places[0] < noted else f"loss ({_short(mine[noted:])})"
        comm.mark(f"a value that the script put into its loss: {what}")
        comm.barrier()  # one that came first hears of it here
        raise RondeError(
            "ranks were given different values for a loss, by threads or processes of the script; give them "
            "by a queue, or compute them alike on all ranks"
        )
    values.clear()


def _plain(roots: Any) -> Iterator[torch.Tensor]:
    """Those of which it has not been noted what went into them."""
    if type(roots) is torch.Tensor and not roots.is_meta:
        yield roots
    elif isinstance(roots, (tuple, list)):
        for each in roots:
            yield from _plain(each)


def _of_roots(roots: Sequence[torch.Tensor]) -> list[tuple[float, float, float]]:
    """As many rows whatever is given: more are added to the last."""
    found = [numbers(each) for each in roots] + [(0.0, 0.0, 0.0)] * _MOST_ROOTS
    first, others = found[: _MOST_ROOTS - 1], found[_MOST_ROOTS - 1 :]
    kinds, sizes, placed = zip(*others, strict=True)
    return [*first, (sum(kinds), sum(sizes), sum(placed))]


def _short(rows: torch.Tensor) -> str:
    return f"digest {zlib.crc32(rows.cpu().numpy().tobytes()):08x}"


def _table(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([numbers(each) for each in values], dtype=torch.float64, device="cpu")


def _differ(mine: torch.Tensor, main: torch.Tensor, slack: float = 1e-300) -> list[bool]:
    same = mine[:, 0] == main[:, 0]
    tolerance = torch.where(main[:, :1] == KIND_OF_NUMBERS, _OF_A_NUMBER, _TOLERANCE)
    close = (mine[:, 1:] - main[:, 1:]).abs() <= tolerance * main[:, 1:2] + slack
    return (~(same & close.all(1))).tolist()
