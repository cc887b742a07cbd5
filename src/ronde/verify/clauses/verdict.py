"""What a clause came to, and how close is close enough."""

from __future__ import annotations

import dataclasses
import enum
import math

import numpy

__all__ = ["DUST", "Status", "Tolerance", "Verdict"]

# A tensor so much smaller than the largest is made of rounding errors: the bias of an attention's keys starts
# from nought, and its true gradient is nought. In double precision 1e-11 of this is the largest's last place.
DUST = 1e-5


# In double precision; what is further apart than this is not for rounding to explain.
_MOST_NOISE = 1e-8

# Of the vector of all parameters, when gradients are sums of numbers that are rounded so: a few times the
# rounding of one number. Twenty steps of small networks came to a tenth of it and more.
_ROUNDING = {"tf32": 1e-3, "fp16": 2e-3, "bf16": 1e-2}


class Status(enum.Enum):
    """Whether a clause held; `nothing` says that the script gave no occasion to test it."""

    holds = "holds"
    broken = "broken"
    nothing = "nothing to compare"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One clause's outcome.

    Attributes:
        clause: `L1` to `L6`.
        title: the clause in one word.
        compared: what was compared, in words with counts.
        divergence: the first divergence, naming rank, step, parameter, file or script line; empty if none.
        worst: the largest relative difference seen, where numbers were compared.
    """

    clause: str
    title: str
    status: Status
    compared: str
    divergence: str = ""
    worst: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """How close is close enough, as relative differences.

    Attributes:
        parameters: in double precision of the largest entry of each tensor, else of the vector of all.
        values: what the script reads, relative to the largest magnitude at that line of the script.
        gradients: norms of gradients, relative to that of all gradients at this step.
        per_tensor: whether parameters are judged tensor by tensor.
        turns: the share by which a whole number may differ, and of those in an array how many may: under a
            precision a count, or the largest of some, can turn by rounding. 0 where they must be equal.
        floor: the noise floor that was measured: plain torch against itself in halves.
    """

    parameters: float
    values: float
    gradients: float
    per_tensor: bool
    floor: float | None = None
    turns: float = 0.0

    @classmethod
    def of(
        cls,
        dtype: str,
        floor: float | None = None,
        precision: str = "fp32",
        gradient_floor: float | None = None,
        *,
        double: bool = False,
    ) -> Tolerance:
        """What is allowed in a run whose default type is `dtype`, under a plan with this precision.

        Args:
            double: the parameters are in double precision by the script's own choice. What it reads need
                not be: of a share of right answers, say, the mean is taken in single precision.
            gradient_floor: by how much norms of gradients differ between plain torch and itself in halves;
                close to a minimum they are little more than rounding.
        """
        if dtype == "float64":
            gradients = max(1e-11, 3 * (gradient_floor or 0.0))
            return cls(parameters=1e-11, values=1e-11, gradients=gradients, per_tensor=True)
        rounding = _ROUNDING.get(precision, 1e-5)
        values = 10 * max(rounding, 3 * (floor or 0.0))
        if double:
            # Where rounding could not be measured it may be as much as is for rounding to explain.
            rounding = _MOST_NOISE if floor is None else 1e-11
        parameters = max(rounding, 3 * (floor or 0.0))
        return cls(
            parameters=parameters,
            values=values,
            gradients=max(10 * parameters, 3 * (gradient_floor or 0.0)),
            per_tensor=False,
            floor=floor,
            turns=values if precision in _ROUNDING else 0.0,
        )

    def of_noise(self, noise: float) -> float:
        """What is allowed where two runs of plain python lie apart by `noise`, both relative.

        In double precision of a tensor: an optimizer divides by the gradient's size, and where the true
        gradient is nought (the bias of an attention's keys) that is rounding over `eps`.
        """
        return min(3 * noise, _MOST_NOISE) if self.per_tensor else 0.0

    def close(self, value: float, reference: float, scale: float) -> bool:
        """Whether two values agree; not-a-number and infinities agree with themselves."""
        return _close(value, reference, self.values * max(abs(reference), scale))

    def close_whole(self, value: float, reference: float, scale: float) -> bool:
        """Whether two whole numbers agree."""
        return value == reference or abs(value - reference) <= self._whole_apart(max(abs(reference), scale))

    def wrong_whole(self, mine: numpy.ndarray, reference: numpy.ndarray, scale: float) -> numpy.ndarray:
        """Of arrays of whole numbers or answers, which entries do not agree."""
        wrong = mine != reference
        if wrong.sum() <= self.turns * wrong.size:
            return numpy.zeros_like(wrong)
        if self.turns and reference.dtype.kind in "iu":
            wrong &= numpy.abs(mine.astype(float) - reference) > self._whole_apart(scale)
        return wrong

    def _whole_apart(self, scale: float) -> float:
        """What may turn of a count: so many on average, and two standard deviations of a rare event."""
        if not self.turns:
            return 0.0
        mean = self.turns * scale
        return max(1.0, mean + 2 * math.sqrt(mean))

    def close_norm(self, norm: float, reference: float, whole: float) -> bool:
        """Whether two norms of a gradient agree; `whole` is that of all gradients."""
        return _close(norm, reference, self.gradients * max(reference, whole))


def _close(value: float, reference: float, allowed: float) -> bool:
    if value == reference or (math.isnan(value) and math.isnan(reference)):
        return True
    return math.isfinite(value) and abs(value - reference) <= allowed


def verdict(
    clause: str, title: str, *, count: int, compared: str, divergence: str | None, worst: float | None = None
) -> Verdict:
    """A verdict from the first divergence (None if there is none) and how much was compared."""
    if divergence:
        status = Status.broken
    else:
        status = Status.holds if count else Status.nothing
    return Verdict(
        clause=clause, title=title, status=status, compared=compared, divergence=divergence or "", worst=worst
    )
