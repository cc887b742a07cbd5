"""Record the phases, traffic and losses of optimizer steps in a rank's step file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ronde.trace.phases import PHASES, Phase, Phases
from ronde.trace.spans import SpanFile
from ronde.trace.step_file import StepFile

__all__ = ["NO_TRAFFIC", "Recorder", "StepRange", "Traffic", "Travelled"]

# Asking for memory is a system call: so often at most.
_LOOK_NS = 250_000_000
# A record costs some microseconds: shorter steps share one.
_SHORTEST_NS = 2_000_000


@dataclasses.dataclass(slots=True)
class Travelled:
    """What a rank has exchanged with others since its start; see `StepRecord`."""

    sent: tuple[int, int, int, int] = (0, 0, 0, 0)
    collectives: int = 0
    last: int = 0
    late: int = 0


class Traffic(Protocol):
    """What knows of a rank's exchange with others."""

    def waited_ns(self) -> int:
        """Nanoseconds that this rank has waited for others so far."""
        ...

    def travelled(self) -> Travelled:
        """What it has exchanged so far."""
        ...

    def listen(self, hear: Callable[[str, int, int, int], object] | None) -> None:
        """Have each collective told: its name, when it began and ended, and its bytes."""
        ...


class _NoTraffic:
    """Traffic of one rank without a process group: always zero."""

    def waited_ns(self) -> int:
        return 0

    def travelled(self) -> Travelled:
        return Travelled()

    def listen(self, hear: Callable[[str, int, int, int], object] | None) -> None:
        """Accept a listener that has nothing to hear."""


NO_TRAFFIC: Traffic = _NoTraffic()


@dataclasses.dataclass(frozen=True, slots=True)
class StepRange:
    """Optimizer steps from `first` to `last`, counted from 1."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> StepRange:
        """Read `A:B`; either may be missing.

        Raises:
            ValueError: it is something else, or empty.

        >>> StepRange.parse("10:20"), StepRange.parse(":5")
        (StepRange(first=10, last=20), StepRange(first=1, last=5))
        """
        first, colon, last = text.partition(":")
        steps = cls(int(first or 1), int(last or 1 << 62))
        if not colon or not 1 <= steps.first <= steps.last:
            raise ValueError(text)
        return steps

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self.first <= step <= self.last


class _Mark(NamedTuple):
    """Counters at one moment.

    Attributes:
        steps, samples: totals of the run.
        time: nanoseconds of the monotonic clock.
        net: the same without waiting for other ranks.
        spent: nanoseconds in each phase, by `Phase`, since the start.
    """

    steps: int
    samples: int
    time: int
    net: int
    spent: tuple[int, ...]


class Recorder:
    """One per rank; what happens is told to `phases`, and each step to this.

    Steps that follow each other within `shortest_ns` share a record.

    Args:
        file: where steps are written.
        traffic: what this rank exchanges with others.
        memory: gives the bytes of the process and of its device.
        spans: where a timeline is written, of these steps; None for none.
        shortest_ns: nanoseconds that a record of steps spans at least; a timeline has a record per step.

    Attributes:
        phases: what the rank does.
    """

    def __init__(
        self,
        file: StepFile,
        traffic: Traffic,
        memory: Callable[[], tuple[int, int]],
        spans: tuple[SpanFile, StepRange] | None = None,
        *,
        shortest_ns: int = _SHORTEST_NS,
    ) -> None:
        self._file, self._traffic, self._ask_memory = file, traffic, memory
        self.phases = Phases(None if traffic is NO_TRAFFIC else traffic.waited_ns, file.show)
        self._spans, self._traced = spans if spans is not None else (None, StepRange(1, 0))
        self._shortest_ns = 0 if spans is not None else shortest_ns
        # Up to where records are written, and the last step, which may be further.
        self._written = self._reached = self._mark(0, 0, self.phases.current)
        self._before = traffic.travelled()
        self._memory, self._looked = memory(), self._written.time
        # What the script read as its loss before the step to which it belongs.
        self._losses: list[float] = []
        self._computed = False
        self._closed = False
        self._trace_if_asked()

    def begin(self) -> None:
        """The script starts now."""
        self._written = self._reached = self._mark(0, 0, self.phases.current)
        self._before = self._traffic.travelled()

    def called(self) -> None:
        """A model is called: what is read as a loss from now on belongs to the step to come."""
        self._computed = True

    def read(self, value: float) -> None:
        """The script has read a loss: that of the step to come, or of the last one."""
        if self._computed or not self._written.steps or self._reached is not self._written:
            self._losses.append(value)
        else:
            self._file.read_loss(value)

    def stepped(self, steps: int, samples: int) -> None:
        """An optimizer has stepped; so many steps are done, on so many samples."""
        if self._closed:
            return
        current = self.phases.current
        # What still comes of an optimizer's step is the next step's.
        reached = self._mark(steps, samples, Phase.OTHER if current == Phase.OPTIMIZER else current)
        self._reached = reached
        self._computed = False
        self._file.show_since(reached.time, steps, samples)
        if reached.time - self._written.time < self._shortest_ns:
            return
        self._write(reached)
        if self._spans is not None:
            self._spans.flush()
            self._trace_if_asked()

    def close(self) -> None:
        """The script is at its end: what came behind the last step is kept, too."""
        if self._closed or not self.phases.here():
            return
        self._closed = True
        if self._reached is not self._written:
            self._write(self._reached)
        self._write(self._mark(self._reached.steps, self._reached.samples, self.phases.current))
        self.phases.end()
        self._file.close()
        self._traffic.listen(None)
        if self._spans is not None:
            self._spans.close()

    def _mark(self, steps: int, samples: int, phase: int) -> _Mark:
        phases = self.phases
        phases.enter(phase)
        return _Mark(steps, samples, phases.begun, phases.net, tuple(phases.spent))

    def _write(self, reached: _Mark) -> None:
        """Append the record of what happened since the last one."""
        written, travelled = self._written, self._traffic.travelled()
        if reached.time - self._looked > _LOOK_NS:
            self._memory, self._looked = self._ask_memory(), reached.time
        before, losses = self._before, self._losses
        data, forward, backward, optimizer = (
            reached.spent[phase] - written.spent[phase]
            for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
        )
        self._file.write(
            [
                reached.steps,
                reached.steps - written.steps,
                written.time,
                reached.time,
                data,
                forward,
                backward,
                optimizer,
                reached.time - written.time - (reached.net - written.net),
                reached.samples - written.samples,
                *self._memory,
                *(after - earlier for after, earlier in zip(travelled.sent, before.sent)),
                travelled.collectives - before.collectives,
                travelled.last - before.last,
                travelled.late - before.late,
                sum(losses) / len(losses) if losses else math.nan,
                len(losses),
            ]
        )
        if self._spans is not None and self.phases.on_change is not None and reached.steps > written.steps:
            self._spans.add("step", written.time, reached.time, reached.steps)
        self._written, self._before = reached, travelled
        if losses:
            self._losses = []

    def _trace_if_asked(self) -> None:
        """Whether the step to come is part of the timeline."""
        spans = self._spans
        if spans is None:
            return
        number = self._written.steps + 1
        if number not in self._traced:
            self.phases.on_change = None
            self._traffic.listen(None)
            return

        def changed(phase: int, begin: int, end: int) -> None:
            spans.add(PHASES[phase], begin, end, number)

        def exchanged(name: str, begin: int, end: int, nbytes: int) -> None:
            if self.phases.here():
                spans.add(name, begin, end, number, nbytes)

        self.phases.on_change = changed
        self._traffic.listen(exchanged)
