"""Differences of runs of plain python by rounding alone: the largest of several twins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

__all__ = ["QUIET", "Noise", "Site"]

Site = tuple[str, str, bool]
"""Line of the script, the call by which it read, and whether it read whole numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Differences between the plain run and its twins. They grow, so each is the largest up to its step.

    Attributes:
        vector: distance of the vector of all parameters, relative to its length, after each step.
        shares: distance of one parameter, relative to the length of that vector, by name and step.
        gradients: difference of a parameter's gradient norm, relative to the norm of all, before each step.
        tensors: difference of one parameter, relative to its largest entry, by name and step.
        values: difference of the values that a line of the script read.
    """

    vector: tuple[float, ...] = ()
    shares: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    gradients: tuple[float, ...] = ()
    tensors: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    values: Mapping[Site, float] = dataclasses.field(default_factory=dict)

    @property
    def floor(self) -> float:
        """The largest difference of the vector of all parameters."""
        return max(self.vector, default=0.0)

    def blurred(self, distance: float) -> dict[str, int]:
        """Return parameters in which twins differ by more than `distance`, with their first step."""
        first = {
            name: next((step for step, apart in enumerate(share, 1) if not apart <= distance), 0)
            for name, share in self.shares.items()
        }
        return {name: step for name, step in first.items() if step}

    def vector_at(self, step: int) -> float:
        """Return the noise of the vector of all parameters after step `step` (1-based)."""
        return _at(self.vector, step)

    def share_at(self, name: str, step: int) -> float:
        """Return the noise of a parameter after step `step` (1-based).

        It is relative to the length of the vector of all.
        """
        return _at(self.shares.get(name, ()), step)

    def tensor_at(self, name: str, step: int) -> float:
        """Return the noise of a parameter after step `step` (1-based).

        It is relative to the parameter's largest entry.
        """
        return _at(self.tensors.get(name, ()), step)

    def gradients_at(self, step: int) -> float:
        """Return the noise of gradient norms before step `step` (1-based)."""
        return _at(self.gradients, step)

    @classmethod
    def largest(cls, several: Iterable[Noise]) -> Noise:
        """Combine several twins: the largest difference of each kind."""
        found = cls()
        for each in several:
            found = cls(
                vector=_longest(found.vector, each.vector),
                shares=_longest_of_each(found.shares, each.shares),
                gradients=_longest(found.gradients, each.gradients),
                tensors=_longest_of_each(found.tensors, each.tensors),
                values={
                    site: max(found.values.get(site, 0.0), each.values.get(site, 0.0))
                    for site in {**found.values, **each.values}
                },
            )
        return found


QUIET = Noise()


def _at(growing: tuple[float, ...], step: int) -> float:
    return growing[min(step, len(growing)) - 1] if growing else 0.0


def _longest(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    steps = range(1, max(len(one), len(other)) + 1)
    return tuple(max(_at(one, step), _at(other, step)) for step in steps)


def _longest_of_each(
    one: Mapping[str, tuple[float, ...]], other: Mapping[str, tuple[float, ...]]
) -> dict[str, tuple[float, ...]]:
    return {name: _longest(one.get(name, ()), other.get(name, ())) for name in {**one, **other}}
