"""Verdict on one clause, and the tolerances of the comparisons."""

from __future__ import annotations

import dataclasses
import enum
import math

import numpy

from ronde.verify.clauses.noise import QUIET, Noise

__all__ = ["DUST", "ClauseVerdict", "Status", "Tolerance"]

# A tensor so much smaller than the largest is made of rounding errors: the bias of an attention's keys starts
# from zero, and its true gradient is zero. In double precision 1e-11 of this is the largest's last place.
DUST = 1e-5


# Twins of plain python show only a part of the possible rounding errors.
_NOISE = 3

# Where twins differ by more than this part of the vector, the comparison proves little.
_SHARP_IN_DOUBLE, _SHARP_AS_IS = 1e-6, 1e-2

# Tolerance for the vector of all parameters, by the precision in which summands of gradients are rounded: a
# few times the rounding of one number. Twenty steps of small networks came to a tenth of it and more.
_ROUNDING = {"tf32": 1e-3, "fp16": 2e-3, "bf16": 1e-2}


class Status(enum.Enum):
    """Outcome of a clause. `nothing`: the script did nothing that tests it."""

    holds = "holds"
    broken = "broken"
    nothing = "nothing to compare"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClauseVerdict:
    """Outcome of one clause.

    Attributes:
        clause: `L1` to `L6`.
        title: the clause in one word.
        compared: the kinds and counts of compared things, in words.
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
    """Allowed relative differences: the larger of a bound and thrice the noise of twins.

    Attributes:
        parameters: bound relative to the largest entry of each tensor, or to the length of the vector of all.
        values: bound for values that the script reads, relative to the largest magnitude at that line.
        gradients: bound for norms of gradients, relative to that of all gradients at this step.
        per_tensor: whether parameters are judged tensor by tensor.
        turns: the share by which a whole number may differ, and the share of entries of an array that may
            differ: under a reduced precision a count, or an argmax, can turn by rounding. 0 where they must
            be equal.
        sharp: the largest noise of twins with which a comparison still proves much.
        noise: differences among twins of plain python.
    """

    parameters: float
    values: float
    gradients: float
    per_tensor: bool = False
    turns: float = 0.0
    sharp: float = _SHARP_AS_IS
    noise: Noise = QUIET

    @classmethod
    def strict(cls, noise: Noise = QUIET) -> Tolerance:
        """Return the parity suite's tolerance: double precision, to the last places of each tensor."""
        return cls(
            parameters=1e-11,
            values=1e-11,
            gradients=1e-11,
            per_tensor=True,
            sharp=_SHARP_IN_DOUBLE,
            noise=noise,
        )

    @classmethod
    def double(cls, noise: Noise = QUIET) -> Tolerance:
        """Return the tolerance in double precision.

        It is a hundred thousand times smaller than the effect of a mistake.
        """
        return cls(parameters=1e-9, values=1e-9, gradients=1e-9, sharp=_SHARP_IN_DOUBLE, noise=noise)

    @classmethod
    def as_is(cls, noise: Noise = QUIET, *, precision: str = "fp32", double: bool = False) -> Tolerance:
        """Return the tolerance in the script's own types, under a plan with this precision.

        Args:
            double: whether the parameters are in double precision by the script's own choice. Values that it
                reads need not be: a mean of right answers, say, is taken in single precision.
        """
        narrow = precision in _ROUNDING
        rounding = _ROUNDING.get(precision, 1e-5)
        return cls(
            parameters=1e-9 if double else rounding,
            values=10 * rounding if narrow else rounding,
            gradients=10 * rounding if narrow else rounding,
            turns=10 * rounding if narrow else 0.0,
            noise=noise,
        )

    def of_share(self, name: str, step: int) -> float:
        """Return a parameter's bound after this step, relative to the vector of all."""
        return max(self.parameters, self.thrice(self.noise.share_at(name, _ahead(step))))

    def of_tensor(self, name: str, step: int) -> float:
        """Return a parameter's bound after this step, relative to its largest entry."""
        return max(self.parameters, self.thrice(self.noise.tensor_at(name, _ahead(step))))

    @staticmethod
    def thrice(noise: float) -> float:
        """Return the bound where twins of plain python differ by `noise`.

        It applies in double precision too: an optimizer divides by the gradient's size, and where the true
        gradient is zero (the bias of an attention's keys) that is rounding over `eps`.
        """
        return _NOISE * noise

    def close(self, value: float, reference: float, scale: float, noise: float = 0.0) -> bool:
        """Return whether two values agree; not-a-number and infinities agree with themselves.

        Args:
            noise: the difference among twins of plain python there.
        """
        return _close(value, reference, max(self.values * max(abs(reference), scale), self.thrice(noise)))

    def close_whole(self, value: float, reference: float, scale: float, noise: float = 0.0) -> bool:
        """Return whether two whole numbers agree."""
        allowed = max(self._whole_apart(max(abs(reference), scale)), noise)
        return value == reference or abs(value - reference) <= allowed

    def wrong_whole(
        self, mine: numpy.ndarray, reference: numpy.ndarray, scale: float, noise: float = 0.0
    ) -> numpy.ndarray:
        """Return a mask of the entries that disagree, for whole numbers or booleans."""
        wrong = mine != reference
        if wrong.sum() <= self.turns * wrong.size:
            return numpy.zeros_like(wrong)
        if (self.turns or noise) and reference.dtype.kind in "iu":
            allowed = max(self._whole_apart(scale), noise)
            wrong &= numpy.abs(mine.astype(float) - reference) > allowed
        return wrong

    def _whole_apart(self, scale: float) -> float:
        """Return the allowed difference of a count.

        It is the mean number of turns plus two standard deviations.
        """
        if not self.turns:
            return 0.0
        mean = self.turns * scale
        return max(1.0, mean + 2 * math.sqrt(mean))

    def close_norm(self, norm: float, reference: float, whole: float, step: int) -> bool:
        """Return whether two norms of a gradient before a step agree.

        `whole` is the norm of all gradients.
        """
        allowed = max(self.gradients, self.thrice(self.noise.gradients_at(_ahead(step))))
        return _close(norm, reference, allowed * max(reference, whole))


def _ahead(step: int) -> int:
    """Return the later step at which noise is read, as ranks may be ahead.

    Rounding grows from step to step, and ranks may be a few steps ahead.
    """
    return step + step // 4 + 1


def _close(value: float, reference: float, allowed: float) -> bool:
    if value == reference or (math.isnan(value) and math.isnan(reference)):
        return True
    return math.isfinite(value) and abs(value - reference) <= allowed


def verdict(
    clause: str, title: str, *, count: int, compared: str, divergence: str | None, worst: float | None = None
) -> ClauseVerdict:
    """Make a verdict from the first divergence, None without one, and the amount compared."""
    if divergence:
        status = Status.broken
    else:
        status = Status.holds if count else Status.nothing
    return ClauseVerdict(
        clause=clause, title=title, status=status, compared=compared, divergence=divergence or "", worst=worst
    )
