"""Averages gradients over ranks in every backward, overlapped with it.

It replaces torch's DDP, which arms its reducer in forward: two forwards before two backwards, one forward
with two backwards, `backward(inputs=...)`, an unused branch or a method past forward raise there, or drift
silently. Here each leaf's post-accumulate hook marks its bucket, full buckets are sent in a fixed order, and
the remaining ones when backward ends. Averaging a gradient that has been averaged before changes nothing, so
accumulation over backwards needs no declaration.

Leaves are held weakly: models and optimizers that the script has released (a model for each fold, a copy for
each task) are forgotten as soon as they are gone on every rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ronde.comm.process_group import Comm
from ronde.errors import RondeError, UsageError
from ronde.patching.torch_internals import DisableTorchFunction, foreach_mul_
from ronde.sync.bucket import Bucket, average
from ronde.sync.bucket_factory import Allocate, BucketFactory, Compress
from ronde.sync.bucket_group import BucketGroup, active_groups
from ronde.sync.bucket_memory import GradientMemory
from ronde.sync.gradient_hooks import GradientHooks
from ronde.sync.gradient_shards import ScatteredGradients
from ronde.sync.half_precision_sums import Casts, NarrowSums
from ronde.sync.leaf import Leaf, give_gradient, gradient_of
from ronde.sync.reduced_gradients import ReducedGradients
from ronde.trace.resident import Census
from ronde.trace.step_clock import Activity, StepClock

__all__ = ["Reducer"]


class Reducer:
    """Averages the gradients of all adopted leaves over ranks.

    Args:
        comm: process group of the reducer alone.
        bucket_bytes: size of a bucket.
        clock: step clock that records, while armed, which part of the program runs.
        compress: factory of compressed buckets; None where all gradients are sent uncompressed.

    Attributes:
        hooks: post-accumulate hooks of the user.
        memory: registry of the buckets' memory.
        backwards: number of backwards that have ended.
        on_finish: callback when a backward has computed all gradients, before they are averaged, or None.
        on_averaged: callback when all averages are complete, before the user's hooks, or None.
        instead_of: function that returns the leaf reduced in place of a parameter, or None.
        beside: function that returns gradients that are averaged when the reducer's are.
        on_first: callback with the leaf whose gradient a backward accumulates first, or None.
    """

    def __init__(
        self,
        comm: Comm,
        bucket_bytes: int,
        clock: StepClock | None = None,
        compress: Compress | None = None,
    ) -> None:
        self._comm = comm
        self._bucket_bytes = bucket_bytes
        self._clock = clock or StepClock()
        self._groups: list[BucketGroup] = [BucketGroup()]
        self._optimizers: weakref.WeakKeyDictionary[Any, BucketGroup] = weakref.WeakKeyDictionary()
        # By id of the tensor; an entry is valid while its leaf still refers to that tensor.
        self._known: dict[int, tuple[Leaf, BucketGroup]] = {}
        self._depth = 0
        # In this backward, or the next, a bucket may be sent before the last part of a gradient.
        self._in_parts = False
        self._graph = False
        # Reducers of leaves that only some of the ranks have; their buckets are sent by `passed`.
        self._of_fewer: list[Reducer] = []
        self._by_word = False
        self.backwards = 0
        self.hooks = GradientHooks()
        self.memory = GradientMemory()
        self._factory = BucketFactory(comm, self.memory, compress)
        self.on_finish: Callable[[], object] | None = None
        self.on_first: Callable[[torch.Tensor], object] | None = None
        self.on_averaged: Callable[[], object] | None = None
        self.instead_of: Callable[[torch.Tensor], torch.Tensor | None] = lambda tensor: None
        self.beside: Callable[[], Collection[torch.Tensor]] = tuple
        self._first: Callable[[torch.Tensor], object] | None = None
        # Kept here, because a session replaces the method for scripts.
        self._register: Any = torch.Tensor.register_post_accumulate_grad_hook

    def reduce_to(
        self,
        *,
        shards: ScatteredGradients | None = None,
        rows: ReducedGradients | None = None,
        allocate: Allocate | None = None,
        encoded: Callable[[], Collection[int] | None] | None = None,
    ) -> None:
        """Set other targets of the reduction than a copy on each rank.

        Call it before any leaf is adopted.

        Args:
            shards: store for shards of dense gradients.
            rows: store for gradients of rows that are spread over ranks.
            allocate: allocator of buckets with gradients that every rank has.
            encoded: function that returns ids of leaves whose gradients may be compressed; None: all.
        """
        if shards is not None:
            self._factory.parts = shards
        if rows is not None:
            self._factory.rows = rows
        if allocate is not None:
            self._factory.allocate = allocate
        if encoded is not None:
            self._factory.encoded = encoded

    def of_fewer(self, comm: Comm) -> Reducer:
        """Create an inner reducer for leaves that only some ranks have.

        The leaves with a gradient, and the time when it is computed, differ between its ranks: see `passed`.

        Args:
            comm: process group of these ranks, for the new reducer alone.
        """
        made = Reducer(comm, self._bucket_bytes, self._clock)
        made._by_word = True
        self._of_fewer.append(made)
        return made

    def adopt(self, tensor: torch.Tensor, optimizer: Any = None) -> None:
        """Reduce this leaf's gradient from now on; a second call changes nothing.

        Leaves without `requires_grad`, or without a shape as in a lazy layer, are skipped: call again later.
        """
        known = self._known.get(id(tensor))
        if known is not None and known[0].ref() is tensor:
            leaf, group = known
            if not leaf.describes(tensor):
                for parts in (self._factory.parts, self._factory.rows):
                    if parts is not None:
                        parts.whole(tensor)  # its shards belong to the former tensor
                leaf.describe(tensor)
                group.outdated = True
            if optimizer is not None and group is self._groups[0]:
                self._move(leaf, group, self._group_of(optimizer))
            return
        with DisableTorchFunction():  # `requires_grad` of a sharded parameter would call the script's method
            if not tensor.requires_grad or not tensor.is_leaf or is_lazy(tensor):
                return
            instead = self.instead_of(tensor)
            if instead is not None:
                if optimizer is not None and self.averages(instead):
                    self.adopt(instead, optimizer)
                return
            group = self._group_of(optimizer)
            leaf = Leaf(tensor)
            self._known[id(tensor)] = leaf, group
            group.leaves.append(leaf)
            group.outdated = True
            leaf.hook = self._register(tensor, self._accumulated)

    def _move(self, leaf: Leaf, before: BucketGroup, group: BucketGroup) -> None:
        """Move a leaf to the group of an optimizer that was made later."""
        before.leaves = [each for each in before.leaves if each is not leaf]
        group.leaves.append(leaf)
        self._known[id(leaf.tensor)] = leaf, group
        before.outdated = group.outdated = True

    def let_go(self, tensor: torch.Tensor) -> Any:
        """Stop reducing this leaf's gradient. A collective.

        Returns the leaf's optimizer, if any.
        """
        known = self._known.get(id(tensor))
        if known is None or known[0].ref() is not tensor:
            return None
        leaf, group = self._known.pop(id(tensor))
        leaf.hook.remove()  # it may be adopted again
        group.leaves = [each for each in group.leaves if each is not leaf]
        group.outdated = True
        return self._optimizer_of(group)

    def adopt_sparse(self, tensor: torch.Tensor) -> None:
        """Expect sparse gradients of this leaf. Call it before the first of them, on all ranks."""
        self.adopt(tensor)
        known = self._known.get(id(tensor))
        if known is not None and known[0].ref() is tensor and not known[0].sparse:
            known[0].sparse = True
            known[1].outdated = True

    def adopt_all(self, optimizer: Any) -> None:
        """Adopt every parameter of an optimizer."""
        for param_group in optimizer.param_groups:
            for parameter in param_group["params"]:
                self.adopt(parameter, optimizer)

    def averages(self, tensor: torch.Tensor) -> bool:
        """Return whether this leaf has been adopted."""
        known = self._known.get(id(tensor))
        return known is not None and known[0].ref() is tensor

    @property
    def adopted(self) -> Sequence[torch.Tensor]:
        """Adopted leaves that are still alive, grouped by optimizer."""
        tensors = [leaf.tensor for leaf in self._leaves]
        return [tensor for tensor in tensors if tensor is not None]

    def tell(self, census: Census) -> None:
        """Count the leaves, the buckets, and gradients outside of buckets."""
        for each in self._of_fewer:
            each.tell(census)
        leaves = self._leaves
        for leaf in leaves:
            census.count("parameters", leaf.tensor)
        for group in self._groups:
            for bucket in group.buckets:
                bucket.tell(census, on_the_way=self.busy)
        on_the_way = self.busy and any(group.buckets for group in self._groups)
        for leaf in leaves:
            census.count("buckets" if on_the_way else "gradients", leaf.gradient)

    @property
    def _leaves(self) -> list[Leaf]:
        return [leaf for group in self._groups for leaf in group.leaves]

    @property
    def busy(self) -> bool:
        """True while a backward is under way."""
        return self._depth > 0

    @contextmanager
    def backward(
        self,
        *,
        divided: int = 1,
        graph: bool = False,
        casts: Casts | None = None,
    ) -> Iterator[None]:
        """Surround a backward; on return all gradients are reduced.

        Args:
            divided: factor by which this backward's initial gradient was divided; averages are multiplied by
                it.
            graph: whether gradients will be differentiable themselves (`create_graph`).
            casts: leaves that this backward reaches through float16, which may not hold every sum over all
                rows.
        """
        if divided > 1 and self._factory.compress is not None and not self._depth:
            raise UsageError(
                "the loss is scaled (by a GradScaler), and the compressor's residual would be added to the "
                "next gradient at another scale; use precision=bf16 in place of the scaler, or "
                "compressor=none [R293]"
            )
        if self._depth:
            self._in_parts = True
            self._depth += 1
            try:
                with self._around_fewer(graph):
                    yield
            finally:
                self._depth -= 1
            return
        self._prepare()
        self._first = self.on_first
        rounded = (
            casts is not None and bool(casts) and self._factory.parts is not None and self._factory.parts.away
        )
        for parts in (self._factory.parts, self._factory.rows):
            if parts is not None and (graph or (rounded and parts.away)):
                parts.restore()  # autograd adds to them, and knows whole ones only
        narrow = None if casts is None else NarrowSums(self._leaves, self._comm, self._factory.parts, casts)
        self._depth = 1
        self._graph = graph
        self._scale(1 / divided)
        for group in self._groups:
            for bucket in group.buckets:
                bucket.begin(graph=graph)
        self.hooks.waiting = True
        try:
            with self._around_fewer(graph):
                yield
            self._finish()
            if self._factory.parts is not None and rounded:
                self._factory.parts.restore()  # losses by rounding happen here
        except BaseException:
            self.hooks.forget()
            # Messages may still be on their way into these buffers: the next backward gets new ones.
            for group in self._groups:
                group.outdated = group.outdated or any(bucket.launched for bucket in group.buckets)
            raise
        finally:
            self._depth = 0
            self.backwards += 1
            self._in_parts = False
            if narrow is not None:
                narrow.unwatch()
            self._scale(divided)
            for group in self._groups:
                group.next = 0
                group.under_way.clear()
                for bucket in group.buckets:
                    bucket.reset()
        if narrow is not None:
            narrow.lose(self._leaves)
        if self.on_averaged is not None:
            self.on_averaged()
        self.hooks.run(self._comm)

    @contextmanager
    def _around_fewer(self, graph: bool) -> Iterator[None]:
        """Surround a backward of leaves that only some ranks have.

        Their initial gradient is not divided, as in `backward`.
        """
        with ExitStack() as stack:
            for each in self._of_fewer:
                stack.enter_context(each.backward(graph=graph))
            yield

    def passed(self, tensors: Iterable[torch.Tensor]) -> None:
        """Send the gradients of these leaves in a backward under way. A collective.

        All ranks pass the same leaves. Gradients that arrive later all the same are sent again when backward
        ends.
        """
        if not self._depth:
            return
        for tensor in tensors:
            known = self._known.get(id(tensor))
            bucket = None if known is None else known[1].of.get(id(tensor))
            if bucket is not None:
                bucket.pass_by(tensor)
        for group in self._groups:
            group.launch_early(self._comm)

    def expect_parts(self) -> None:
        """Allow parts of gradients in the next backward; called on all ranks."""
        self._in_parts = True

    @torch.no_grad()
    def give(self, tensor: torch.Tensor, part: torch.Tensor) -> bool:
        """Add to a leaf's gradient during a backward, as autograd does.

        Returns False, without adding anything, where that has to wait until this backward has ended.
        """
        known = self._known.get(id(tensor))
        bucket = None if known is None else known[1].of.get(id(tensor))
        travels = self._comm.world_size == 1 or (bucket is not None and not bucket.encodes)
        if not (self._depth and self._in_parts and travels) or self._graph:
            return False
        gradient = gradient_of(tensor)
        give_gradient(tensor, part if gradient is None else gradient.add_(part))
        self._accumulated(tensor)
        return True

    def settle(self) -> None:
        """Average partial gradients after a backward raised on all ranks. A collective."""
        for each in self._of_fewer:
            each.settle()
        groups = [group for group in self._groups if group.leaves and group.buckets]
        for group in groups:
            for bucket in group.buckets[group.next :]:
                bucket.launch()
        average([bucket for group in groups for bucket in group.buckets])
        for group in groups:
            for bucket in group.buckets:
                bucket.deliver()

    @torch.no_grad()
    def _scale(self, factor: float) -> None:
        """Multiply every existing gradient, to match the scale of new ones."""
        if factor == 1:
            return
        gradients = [gradient for leaf in self._leaves if (gradient := leaf.gradient) is not None]
        gradients += self.beside()
        if gradients:
            foreach_mul_(gradients, factor)
        for parts in (self._factory.parts, self._factory.rows):
            if parts is not None:
                parts.scale(factor)

    def _group_of(self, optimizer: Any) -> BucketGroup:
        if optimizer is None:
            return self._groups[0]
        group = self._optimizers.setdefault(optimizer, BucketGroup())
        if group not in self._groups:
            self._groups.append(group)
        return group

    def _prepare(self) -> None:
        """Create new buckets where leaves were added, changed or freed. A collective.

        Ranks adopt the same leaves, so all of them call it.
        """
        if not any(group.outdated for group in self._groups):
            return
        self._forget_gone()
        for group in self._groups:
            if group.outdated:
                self._rebuild(group)

    def _rebuild(self, group: BucketGroup) -> None:
        """Create new buckets for a group's leaves. A collective."""
        leaves = group.leaves
        if self._factory.parts is not None:
            # Owners of shards are decided for a bucket together, so only leaves that are alive on every rank
            # take part, and they are held meanwhile. Other leaves get no gradient: on some rank nobody can
            # reach them.
            held = [leaf.tensor for leaf in leaves]
            there = self._comm.votes([tensor is not None for tensor in held])
            everywhere = self._comm.world_size
            leaves = [leaf for leaf, count in zip(leaves, there, strict=True) if count == everywhere]
        optimizer = self._optimizer_of(group)
        group.rebuild(leaves, lambda cut: self._factory.create(cut, optimizer), self._bucket_bytes)

    def _optimizer_of(self, group: BucketGroup) -> Any:
        return next((each for each, of in self._optimizers.items() if of is group), None)

    def _forget_gone(self) -> None:
        """Forget leaves that are gone on every rank. A collective.

        Ranks collect garbage at different times.
        """
        leaves = self._leaves
        there = self._comm.votes([leaf.ref() is not None for leaf in leaves])
        gone = {id(leaf) for leaf, count in zip(leaves, there, strict=True) if not count}
        if not gone:
            return
        for group in self._groups:
            kept = [leaf for leaf in group.leaves if id(leaf) not in gone]
            group.outdated = group.outdated or len(kept) < len(group.leaves)
            group.leaves = kept
        first, *others = self._groups
        self._groups = [first, *(group for group in others if group.leaves)]
        self._known = {key: known for key, known in self._known.items() if id(known[0]) not in gone}

    def _accumulated(self, tensor: torch.Tensor) -> None:
        known = self._known.get(id(tensor)) if self._depth else None
        bucket = None if known is None else known[1].of.get(id(tensor))
        # torch calls hooks for a function, too, that gives this leaf no gradient.
        if known is None or bucket is None or gradient_of(tensor) is None:
            return
        group = known[1]
        before = self._clock.enter(Activity.OWN) if self._clock.armed else None
        if group.arrival is not None:
            group.arrival.append(id(tensor))
        bucket.mark(tensor)
        if self._first is not None:
            self._first(tensor)
            self._first = None
        if not self._by_word:
            group.launch_early(self._comm)
        if before is not None:
            self._clock.enter(before)

    def _finish(self) -> None:
        if self.on_finish is not None:
            self.on_finish()
        active = active_groups(self._groups, self._comm)
        for group in active:
            for bucket in group.buckets[group.next :]:
                bucket.launch()
        buckets = [bucket for group in active for bucket in group.buckets]
        self._send_stale(buckets)
        average(buckets)
        for group in active:
            given = [leaf for bucket in group.buckets for leaf in bucket.deliver()]
            self._learn_arrival(group, given)

    def _send_stale(self, buckets: list[Bucket]) -> None:
        """Send again the buckets with gradients that some rank computed later. A collective.

        That happens in a backward within backward (reentrant checkpoints with segments that share a
        parameter), and where parts are given.
        """
        if not (self._in_parts or self._by_word):
            if any(bucket.stale for bucket in buckets):
                raise RondeError(
                    "a gradient was accumulated twice in one backward; use Tensor.backward() [R377]"
                )
            return
        for bucket, count in zip(
            buckets, self._comm.votes([bucket.stale for bucket in buckets]), strict=True
        ):
            if count:
                average([bucket])
                bucket.launch()

    def _learn_arrival(self, group: BucketGroup, given: Sequence[torch.Tensor]) -> None:
        """Rebuild a group's buckets after its first backward, in rank 0's order of arrival."""
        if group.learn_arrival(self._comm):
            self._rebuild(group)
            known = {id(leaf) for leaf in given}
            for bucket in group.buckets:
                bucket.take_over(known)
