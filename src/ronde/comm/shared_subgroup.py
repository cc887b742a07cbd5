"""Collectives among some of the ranks that share memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch

from ronde.comm.shared_memory import SharedMemory

__all__ = ["shared_subgroup"]

# A tag that no other message has.
_TAG = -1


def shared_subgroup(shared: SharedMemory, members: Sequence[int]) -> SharedMemory | None:
    """Memory among some of the ranks; called by these, in the same order, and perhaps by others.

    Args:
        members: their ranks in `shared`, in the order of their ranks in the result; the same on each.

    Returns:
        None to a rank that is no member.

    Raises:
        LaunchError: when there is not enough memory; raised on all members.
    """
    if shared.rank not in members:
        return None
    mailbox = shared.mailbox

    def exchange(mine: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        flat = torch.tensor(mine, device="cpu").view(torch.uint8)
        parts = [torch.empty_like(flat) for _ in members]
        for each in members:
            mailbox.send(flat, each, _TAG)
        for each, part in zip(members, parts, strict=True):
            mailbox.wait(mailbox.receive(part, each, _TAG))
        places = [part.view(torch.int64).tolist() for part in parts]
        return [(first, second, third) for first, second, third in places]

    return SharedMemory(
        members.index(shared.rank),
        len(members),
        exchange,
        timeout=timedelta(seconds=shared.waiting.timeout),
        numbers=[shared.numbers[each] for each in members],
    )
