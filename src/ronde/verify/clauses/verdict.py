"""What a clause came to, and how close is close enough."""

from __future__ import annotations

import dataclasses
import enum
import math

import numpy

from ronde.verify.clauses.noise import QUIET, Noise

__all__ = ["DUST", "Status", "Tolerance", "Verdict"]

# A tensor so much smaller than the largest is made of rounding errors: the bias of an attention's keys starts
# from zero, and its true gradient is zero. In double precision 1e-11 of this is the largest's last place.
DUST = 1e-5


# Twins of plain python show a part of what rounding can do.
_NOISE = 3

# Where twins lie further apart than this part of the vector, not much is proved.
_SHARP_IN_DOUBLE, _SHARP_AS_IS = 1e-6, 1e-2

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
    """How close is close enough, as relative differences: a bound, or thrice what twins of plain python show.

    Attributes:
        parameters: of the largest entry of each tensor, or of the vector of all.
        values: what the script reads, relative to the largest magnitude at that line of the script.
        gradients: norms of gradients, relative to that of all gradients at this step.
        per_tensor: whether parameters are judged tensor by tensor.
        turns: the share by which a whole number may differ, and of those in an array how many may: under a
            precision a count, or the largest of some, can turn by rounding. 0 where they must be equal.
        sharp: how far twins may lie apart where a comparison with them proves much.
        noise: what twins of plain python show.
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
        """In double precision, to the last places: each tensor by itself, as the parity suite asks."""
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
        """In double precision: a hundred thousand times below what a mistake changes."""
        return cls(parameters=1e-9, values=1e-9, gradients=1e-9, sharp=_SHARP_IN_DOUBLE, noise=noise)

    @classmethod
    def as_is(cls, noise: Noise = QUIET, *, precision: str = "fp32", double: bool = False) -> Tolerance:
        """In the script's own types, under a plan with this precision.

        Args:
            double: the parameters are in double precision by the script's own choice. What it reads need
                not be: of a share of right answers, say, the mean is taken in single precision.
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
        """What is allowed of one parameter after this step, as a part of the vector of all."""
        return max(self.parameters, self.thrice(self.noise.share_at(name, _ahead(step))))

    def of_tensor(self, name: str, step: int) -> float:
        """What is allowed of one parameter after this step, as a part of its largest entry."""
        return max(self.parameters, self.thrice(self.noise.tensor_at(name, _ahead(step))))

    @staticmethod
    def thrice(noise: float) -> float:
        """What is allowed where twins of plain python lie apart by `noise`.

        In double precision too: an optimizer divides by the gradient's size, and where the true gradient is
        zero (the bias of an attention's keys) that is rounding over `eps`.
        """
        return _NOISE * noise

    def close(self, value: float, reference: float, scale: float, noise: float = 0.0) -> bool:
        """Whether two values agree; not-a-number and infinities agree with themselves.

        Args:
            noise: how far twins of plain python lie apart there.
        """
        return _close(value, reference, max(self.values * max(abs(reference), scale), self.thrice(noise)))

    def close_whole(self, value: float, reference: float, scale: float, noise: float = 0.0) -> bool:
        """Whether two whole numbers agree."""
        allowed = max(self._whole_apart(max(abs(reference), scale)), noise)
        return value == reference or abs(value - reference) <= allowed

    def wrong_whole(
        self, mine: numpy.ndarray, reference: numpy.ndarray, scale: float, noise: float = 0.0
    ) -> numpy.ndarray:
        """Of arrays of whole numbers or answers, which entries do not agree."""
        wrong = mine != reference
        if wrong.sum() <= self.turns * wrong.size:
            return numpy.zeros_like(wrong)
        if (self.turns or noise) and reference.dtype.kind in "iu":
            allowed = max(self._whole_apart(scale), noise)
            wrong &= numpy.abs(mine.astype(float) - reference) > allowed
        return wrong

    def _whole_apart(self, scale: float) -> float:
        """What may turn of a count: so many on average, and two standard deviations of a rare event."""
        if not self.turns:
            return 0.0
        mean = self.turns * scale
        return max(1.0, mean + 2 * math.sqrt(mean))

    def close_norm(self, norm: float, reference: float, whole: float, step: int) -> bool:
        """Whether two norms of a gradient before a step agree; `whole` is that of all gradients."""
        allowed = max(self.gradients, self.thrice(self.noise.gradients_at(_ahead(step))))
        return _close(norm, reference, allowed * max(reference, whole))


def _ahead(step: int) -> int:
    """The step whose noise counts: where rounding grows from step to step, ranks may be a few steps ahead."""
    return step + step // 4 + 1


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
