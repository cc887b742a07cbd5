"""Averages gradients over ranks at the end of every backward, overlapped with it.

Our own, because torch's DDP arms its reducer in forward: two forwards before two backwards, one forward
with two backwards, `backward(inputs=...)`, an unused branch or a method past forward raise there, or
drift silently. Here each leaf's post-accumulate hook marks its bucket, buckets leave in a fixed order as
they fill up, and what is missing leaves when backward ends. Averaging a gradient that has been averaged
before changes nothing, so accumulation over backwards needs no declaration.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.sync.bucket import Bucket, assign_buckets

__all__ = ["Reducer"]

_FIRST_BUCKET_BYTES = 1 << 20


class _Group:
    """Leaves that are reduced together: those of one optimizer, or those without one."""

    def __init__(self) -> None:
        self.leaves: list[torch.Tensor] = []
        self.buckets: list[Bucket] = []
        self.of: dict[int, Bucket] = {}
        self.next = 0
        self.outdated = False
        # Ids of leaves in the order in which backward reached them; recorded in the first backward only.
        self.arrival: list[int] = []
        self.recording = True

    def rebuild(self, comm: Comm, bucket_bytes: int) -> None:
        """Cut the leaves into buckets, in the order of arrival where it is known, else last leaf first."""
        if self.arrival:
            place = {key: index for index, key in enumerate(self.arrival)}
            order = sorted(self.leaves, key=lambda leaf: place.get(id(leaf), len(place)))
        else:
            order = self.leaves[::-1]
        cut = assign_buckets(order, _FIRST_BUCKET_BYTES, bucket_bytes)
        self.buckets = [Bucket(members, comm) for members in cut]
        self.of = {id(leaf): bucket for bucket in self.buckets for leaf in bucket.parameters}
        self.outdated = False


class Reducer:
    """Makes the gradients of all adopted leaves equal on all ranks: the mean over ranks.

    Args:
        comm: a group of the reducer's own.
        bucket_bytes: size of a bucket.
    """

    def __init__(self, comm: Comm, bucket_bytes: int) -> None:
        self._comm = comm
        self._bucket_bytes = bucket_bytes
        self._groups: list[_Group] = [_Group()]
        self._optimizers: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()
        self._group_of: dict[int, _Group] = {}
        self._depth = 0
        # Held here, because a session replaces the method for scripts.
        self._register: Any = torch.Tensor.register_post_accumulate_grad_hook

    def adopt(self, leaf: torch.Tensor, optimizer: Any = None) -> None:
        """Reduce this leaf's gradient from now on; a second call changes nothing.

        Leaves that do not require a gradient are adopted when they do: call again.
        """
        if id(leaf) in self._group_of or not leaf.requires_grad or not leaf.is_leaf:
            return
        group = self._groups[0] if optimizer is None else self._optimizers.get(optimizer)
        if group is None:
            group = self._optimizers[optimizer] = _Group()
            self._groups.append(group)
        self._group_of[id(leaf)] = group
        group.leaves.append(leaf)
        group.outdated = True
        self._register(leaf, lambda accumulated: self._accumulated(group, accumulated))

    def adopt_all(self, optimizer: Any) -> None:
        """Adopt every parameter of an optimizer."""
        for param_group in optimizer.param_groups:
            for parameter in param_group["params"]:
                self.adopt(parameter, optimizer)

    @property
    def adopted(self) -> Sequence[torch.Tensor]:
        """Every adopted leaf, in order of adoption within each optimizer."""
        return [leaf for group in self._groups for leaf in group.leaves]

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around every backward: on return all gradients are reduced."""
        if self._depth:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
            return
        for group in self._groups:
            if group.outdated:
                group.rebuild(self._comm, self._bucket_bytes)
        self._depth = 1
        try:
            yield
            self._finish()
        finally:
            self._depth = 0
            for group in self._groups:
                group.next = 0
                for bucket in group.buckets:
                    bucket.reset()

    def _accumulated(self, group: _Group, leaf: torch.Tensor) -> None:
        if not self._depth:
            return
        bucket = group.of.get(id(leaf))
        if bucket is None:
            return
        if group.recording:
            group.arrival.append(id(leaf))
        bucket.mark(leaf)
        while group.next < len(group.buckets) and group.buckets[group.next].complete:
            group.buckets[group.next].launch()
            group.next += 1

    def _finish(self) -> None:
        active = self._active_groups()
        for group in active:
            for bucket in group.buckets[group.next :]:
                bucket.launch()
        for group in active:
            for bucket in group.buckets:
                bucket.finish()
        for group in active:
            self._learn_arrival(group)

    def _active_groups(self) -> list[_Group]:
        """Groups of which some rank computed a gradient in this backward."""
        groups = [group for group in self._groups if group.leaves]
        if len(groups) <= 1:
            return groups
        device = groups[0].leaves[0].device
        touched = [float(any(bucket.touched for bucket in group.buckets)) for group in groups]
        votes = self._comm.all_reduce(torch.tensor(touched, device=device)).tolist()
        return [group for group, count in zip(groups, votes, strict=True) if count]

    def _learn_arrival(self, group: _Group) -> None:
        """After its first backward a group's buckets follow the main rank's order of arrival."""
        if not group.recording:
            return
        place = {id(leaf): index for index, leaf in enumerate(group.leaves)}
        seen = [place[key] for key in dict.fromkeys(group.arrival)]
        group.arrival = [id(group.leaves[index]) for index in self._comm.broadcast_object(seen)]
        if group.arrival:
            group.recording = False
            group.rebuild(self._comm, self._bucket_bytes)
