"""Groups of leaves that are reduced together, in buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from ronde.comm.process_group import Comm
from ronde.sync.bucket import Bucket, assign_buckets
from ronde.sync.leaf import Leaf

__all__ = ["BucketGroup", "active_groups"]

_FIRST_BUCKET_BYTES = 1 << 20


@final
class BucketGroup:
    """Leaves that are reduced together, by optimizer or without one."""

    def __init__(self) -> None:
        # In order of adoption; after the first backward in the order in which backward reaches them.
        self.leaves: list[Leaf] = []
        self.buckets: list[Bucket] = []
        self.of: dict[int, Bucket] = {}
        self.next = 0
        # Launched buckets, until their launch is complete.
        self.under_way: list[Bucket] = []
        self.outdated = False
        # Ids of tensors in the order of the first backward; None after it.
        self.arrival: list[int] | None = []

    def rebuild(
        self, leaves: list[Leaf], made: Callable[[list[list[Leaf]]], list[Bucket]], bucket_bytes: int
    ) -> None:
        """Split leaves into buckets, in the order of arrival if known.

        Else in reverse order of adoption.
        """
        order = leaves if self.arrival is None else leaves[::-1]
        first_bytes = min(_FIRST_BUCKET_BYTES, bucket_bytes)
        self.buckets = made(assign_buckets(order, first_bytes, bucket_bytes))
        self.of = {id(leaf.tensor): bucket for bucket in self.buckets for leaf in bucket.leaves}
        self.outdated = False

    def launch_early(self, comm: Comm) -> None:
        """Send the next buckets that are complete before backward ends."""
        while self.next < len(self.buckets) and self.buckets[self.next].early:
            self._launch_next(comm)

    def learn_arrival(self, comm: Comm) -> bool:
        """Sort the leaves by rank 0's order of arrival. A collective.

        Returns whether the order is known from now on; it is learnt once.
        """
        if self.arrival is None:
            return False
        place = {id(leaf.tensor): index for index, leaf in enumerate(self.leaves)}
        seen = [place[key] for key in dict.fromkeys(self.arrival) if key in place]
        first = comm.broadcast_object(seen)
        self.arrival = []
        if not first:
            return False
        rest = sorted(set(range(len(self.leaves))) - set(first))
        self.leaves = [self.leaves[index] for index in (*first, *rest)]
        self.arrival = None
        return True

    def _launch_next(self, comm: Comm) -> None:
        """Send the next bucket during backward; ranks reach this at different points."""
        bucket, before = self.buckets[self.next], comm.before
        if before is not None and bucket.waits:
            before()  # a rank that has raised will not take part
        comm.before = None
        try:
            self.under_way = [launched for launched in self.under_way if not launched.advance()]
            bucket.launch()
            self.under_way.append(bucket)
            self.next += 1
        finally:
            comm.before = before


def active_groups(groups: Sequence[BucketGroup], comm: Comm) -> list[BucketGroup]:
    """Return groups with a gradient on some rank, or a bucket sent. A collective."""
    filled = [group for group in groups if group.leaves and group.buckets]
    if len(filled) <= 1:
        return filled
    votes = comm.votes(
        [any(bucket.touched or bucket.launched for bucket in group.buckets) for group in filled]
    )
    return [group for group, count in zip(filled, votes, strict=True) if count]
