"""A kind of link, and the constants of collectives over it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["Constants", "Link"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """Seconds of a collective: `alpha + f S / beta + gamma sqrt(S)`, S in bytes.

    Attributes:
        alpha: seconds.
        beta: bytes/s.
        gamma: seconds for each square root of a byte.
    """

    alpha: float
    beta: float
    gamma: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A link between devices of a node, or between nodes.

    Attributes:
        usual: constants for any operation.
        measured: constants of an operation over so many ranks, where a table of them is known.
        nics: network cards of a node; 1 inside a node. `usual.beta` is the rate of one card.
        straggle: seconds that each doubling of nodes adds to a step: the slowest node is waited for.
    """

    usual: Constants
    measured: Mapping[tuple[str, int], Constants] = dataclasses.field(default_factory=dict)
    nics: int = 1
    straggle: float = 0.0

    def constants(self, operation: str, ranks: int) -> Constants:
        """Return the constants measured for the nearest number of ranks, or the usual ones.

        >>> Link(usual=Constants(alpha=1e-5, beta=1e9)).constants("all_reduce", 4).beta
        1000000000.0
        """
        sizes = [size for name, size in self.measured if name == operation]
        if not sizes:
            return self.usual
        nearest = min(sizes, key=lambda size: (abs(size - ranks), size))
        return self.measured[operation, nearest]
