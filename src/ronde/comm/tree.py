"""Two binary trees over all ranks, each of which carries half the tensor.

A tree needs about 2 log2(W) messages in sequence, where a ring needs 2 (W - 1). Half of a tree's ranks are
leaves, which only send their own part; so a second tree carries the other half of the tensor, in which those
ranks are inner nodes, and every link is used alike. (Sanders, Speck and Traeff, "Two-tree algorithms for full
bandwidth broadcast, reduction and scan", 2009.) The first tree of 7 ranks, and the second, which is the first
with every rank moved on by one (with an even number of ranks: mirrored):

            0                          1
            |                          |
            4                          5
          /   \\                      /   \\
         2     6                    3     0
        / \\   /                    / \\   /
       1   3 5                    2   4 6

Pieces follow one another up and down. Sums are taken in one order and sent down from the root, so all ranks
hold the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from ronde.comm.transport import Handle, Transport

__all__ = ["TreeNode", "all_reduce", "two_trees"]

PIECE_BYTES = 1 << 18
# Pieces that go up before the first comes down: the trees are that deep for hundreds of ranks.
_AHEAD = 4
_UP, _DOWN = 0, 1


@dataclasses.dataclass(frozen=True, slots=True)
class TreeNode:
    """A rank's neighbours in one tree."""

    parent: int | None
    children: tuple[int, ...]


def two_trees(rank: int, world_size: int) -> tuple[TreeNode, TreeNode]:
    """Return the places of `rank` in both trees."""

    def of_second(number: int) -> int:
        """Return the second tree's rank at the place of `number` in the first."""
        return world_size - 1 - number if world_size % 2 == 0 else (number + 1) % world_size

    def in_second(number: int) -> int:
        return world_size - 1 - number if world_size % 2 == 0 else (number - 1) % world_size

    first = _node(rank, world_size)
    second = _node(in_second(rank), world_size)
    moved = TreeNode(
        None if second.parent is None else of_second(second.parent),
        tuple(of_second(child) for child in second.children),
    )
    return first, moved


def _parent(number: int, count: int) -> int | None:
    """Return a node's parent in the first tree.

    Odd numbers are leaves, and zero is the root with one child.
    """
    if number == 0:
        return None
    lowest = number & -number
    above = (number ^ lowest) | (lowest << 1)
    return above if above < count else number ^ lowest


def _node(number: int, count: int) -> TreeNode:
    # A child differs from its parent by a power of two; few numbers are tried, for this is done in every sum.
    powers = [1 << bit for bit in range(count.bit_length())]
    others = sorted({number - power for power in powers} | {number + power for power in powers})
    children = [each for each in others if 0 < each < count and _parent(each, count) == number]
    return TreeNode(_parent(number, count), tuple(children))


def all_reduce(transport: Transport, flat: torch.Tensor, piece_bytes: int = PIECE_BYTES) -> None:
    """Sum `flat` [n] over the ranks in place."""
    if transport.world_size == 1 or not flat.numel():
        return
    middle = -(-flat.numel() // 2)
    halves = (flat[:middle], flat[middle:])
    width = max(1, piece_bytes // flat.element_size())
    flows = [
        _Flow(transport, node, half.split(width) if half.numel() else (), tags=(2 * number, 2 * number + 1))
        for number, (node, half) in enumerate(
            zip(two_trees(transport.rank, transport.world_size), halves, strict=True)
        )
    ]
    longest = max(flow.length for flow in flows)
    # Every rank takes these steps in this order, so each waits only for steps that come before.
    for step in range(longest + _AHEAD):
        for flow in flows:
            flow.up(step)
        for flow in flows:
            flow.down(step - _AHEAD)
    for flow in flows:
        flow.finish()


class _Flow:
    """The pieces of one half in one tree, as this rank sees them."""

    def __init__(
        self, transport: Transport, node: TreeNode, pieces: Sequence[torch.Tensor], tags: tuple[int, int]
    ) -> None:
        self._transport = transport
        self._node = node
        self._pieces = pieces
        self._tags = tags
        self.length = len(pieces)
        # Two for each child: the next piece arrives while this one is added.
        self._scratch = [[torch.empty_like(piece) for piece in pieces[:2]] for _ in node.children]
        self._arriving: dict[tuple[int, int], tuple[torch.Tensor, Handle]] = {}
        self._to_parent: dict[int, Handle] = {}
        self._from_parent: dict[int, Handle] = {}
        self._sent: list[Handle] = []
        self._expect(0)
        self._expect(1)

    def up(self, step: int) -> None:
        """Add the children's sums of one piece, and send them to the parent."""
        if step >= self.length:
            return
        own = self._pieces[step]
        for place in range(len(self._node.children)):
            received, handle = self._arriving.pop((step, place))
            handle.wait()
            own.add_(received)
        self._expect(step + 2)
        if self._node.parent is not None:
            self._to_parent[step] = self._transport.send(own, self._node.parent, self._tags[_UP])
            self._expect_sum(step - 1)

    def down(self, step: int) -> None:
        """Receive one piece's sum from the parent, and send it to the children."""
        if not 0 <= step < self.length:
            return
        if self._node.parent is not None:
            self._expect_sum(step)
            self._from_parent.pop(step).wait()
        for child in self._node.children:
            self._sent.append(self._transport.send(self._pieces[step], child, self._tags[_DOWN]))

    def finish(self) -> None:
        for handle in self._sent:
            handle.wait()

    def _expect_sum(self, step: int) -> None:
        """Start to receive a piece's sum from the parent.

        It replaces this rank's own piece, once that has been sent.
        """
        handle = self._to_parent.pop(step, None)
        if handle is not None:
            handle.wait()
            parent = self._node.parent
            assert parent is not None
            self._from_parent[step] = self._transport.receive(self._pieces[step], parent, self._tags[_DOWN])

    def _expect(self, step: int) -> None:
        """Start to receive one piece of each child's sums."""
        if step >= self.length:
            return
        for place, child in enumerate(self._node.children):
            target = self._scratch[place][step % 2][: self._pieces[step].numel()]
            handle = self._transport.receive(target, child, self._tags[_UP])
            self._arriving[step, place] = target, handle
