"""Record the phases, traffic and losses of optimizer steps in a rank's step file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

# Bound at import: the module's own is replaced for scripts.
from time import perf_counter_ns
from typing import NamedTuple, Protocol

from ronde.trace.phases import PHASES, Phase, Phases
from ronde.trace.spans import SpanFile
from ronde.trace.step_file import StepFile

__all__ = ["NO_TRAFFIC", "StepRange", "TraceRecorder", "TrafficSource", "Travelled"]

# Least time between two readings of the process's memory, each a system call.
_LOOK_NS = 250_000_000
# Measuring a step costs some tens of microseconds, so very short steps share a record.
_SHORTEST_NS = 10_000_000


@dataclasses.dataclass(slots=True)
class Travelled:
    """Totals of a rank's communication since its start; see `StepRecord`."""

    sent: tuple[int, int, int, int] = (0, 0, 0, 0)
    collectives: int = 0
    last: int = 0
    late: int = 0


class TrafficSource(Protocol):
    """Source of a rank's traffic with others."""

    def waited_ns(self) -> int:
        """Nanoseconds that this rank has waited for others so far."""
        ...

    def travelled(self) -> Travelled:
        """Return the totals so far."""
        ...

    def listen(self, hear: Callable[[str, int, int, int], object] | None) -> None:
        """Report each collective to `hear`: name, beginning, end, and bytes."""
        ...


class _NoTraffic:
    """Traffic of one rank without a process group: always zero."""

    def waited_ns(self) -> int:
        return 0

    def travelled(self) -> Travelled:
        return Travelled()

    def listen(self, hear: Callable[[str, int, int, int], object] | None) -> None:
        """Accept a listener, and never call it."""


NO_TRAFFIC: TrafficSource = _NoTraffic()


@dataclasses.dataclass(frozen=True, slots=True)
class StepRange:
    """Optimizer steps from `first` to `last`, counted from 1."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> StepRange:
        """Read `A:B`; either may be missing.

        Raises:
            ValueError: the text is something else, or empty.

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


class TraceRecorder:
    """Recorder of one rank's steps, fed by `phases` and by its callers.

    Steps that follow each other within `shortest_ns` share a record. On one rank only the first of them is
    measured by phase, and the others are assumed to be like it.

    Args:
        file: step file of this rank.
        traffic: source of this rank's traffic with others.
        memory: gives the bytes of the process and of its device.
        spans: timeline file, and the steps in it; None for no timeline.
        shortest_ns: nanoseconds that a record of steps spans at least; a timeline has a record per step.

    Attributes:
        phases: phases of the rank.
    """

    def __init__(
        self,
        file: StepFile,
        traffic: TrafficSource,
        memory: Callable[[], tuple[int, int]],
        spans: tuple[SpanFile, StepRange] | None = None,
        *,
        shortest_ns: int = _SHORTEST_NS,
    ) -> None:
        self._file, self._traffic, self._ask_memory = file, traffic, memory
        self.phases = Phases(None if traffic is NO_TRAFFIC else traffic.waited_ns, file.show)
        self._spans, self._traced = spans if spans is not None else (None, StepRange(1, 0))
        self._shortest_ns = 0 if spans is not None else shortest_ns
        self._is_alone = traffic is NO_TRAFFIC
        # Counters at the last written record, at the last measured step, and at the last step of a pause
        # after it.
        self._written = self._reached = self._mark(0, 0, self.phases.current)
        self._unmeasured: tuple[int, int, int] | None = None
        self._before = traffic.travelled()
        self._memory, self._looked = memory(), self._written.time
        self._start = 0
        # Losses that the script has read before the step to which they belong.
        self._losses: list[float] = []
        self._computed = False
        self._closed = False
        self._trace_if_asked()

    def begin(self) -> None:
        """Start recording, as the script starts."""
        self._written = self._reached = self._mark(0, 0, self.phases.current)
        self._before = self._traffic.travelled()

    def go_on_from(self, steps: int) -> None:
        """Count steps from a checkpoint on; earlier steps belong to another run."""
        self._start = steps
        self._written, self._reached = (
            mark._replace(steps=steps + mark.steps) for mark in (self._written, self._reached)
        )

    def called(self) -> None:
        """Assign losses that are read from now on to the next step.

        Called when the script calls a model.
        """
        self._computed = True

    def read(self, value: float) -> None:
        """Record a loss that the script has read, for the next or last step."""
        is_written = self._unmeasured is None and self._reached is self._written
        if self._computed or not is_written or self._written.steps == self._start:
            self._losses.append(value)
        else:
            self._file.read_loss(value)

    def stepped(self, steps: int, samples: int) -> None:
        """Record that an optimizer has stepped; totals of steps and samples are given."""
        phases = self.phases
        if phases.current == Phase.UNMEASURED and (now := perf_counter_ns()) < phases.resume_at:
            self._unmeasured = now, steps, samples
            self._file.show_since(now, steps, samples)
            return
        if self._closed:
            return
        self._computed = False
        # The time after this point in an optimizer's step counts to the next step.
        in_step = phases.current in (Phase.OPTIMIZER, Phase.UNMEASURED)
        reached = self._reached = self._mark(steps, samples, Phase.OTHER if in_step else phases.current)
        self._unmeasured = None
        self._file.show_since(reached.time, steps, samples)
        # The first step has a separate record: the steady part begins after it.
        if self._written.steps == self._start or reached.time - self._written.time >= self._shortest_ns:
            self._write(reached)
            if self._spans is not None:
                self._spans.flush()
                self._trace_if_asked()
        elif self._is_alone:
            phases.pause(self._written.time + self._shortest_ns)

    def close(self) -> None:
        """Write the time after the last step, at the end of the script."""
        if self._closed or not self.phases.here():
            return
        self._closed = True
        last = self._last_step()
        if last.steps > self._written.steps:
            self._write(last)
        self._write(self._mark(last.steps, last.samples, Phase.OTHER))
        self.phases.end()
        self._file.close()
        self._traffic.listen(None)
        if self._spans is not None:
            self._spans.close()

    def _mark(self, steps: int, samples: int, phase: int) -> _Mark:
        phases = self.phases
        phases.enter(phase)
        return _Mark(steps, samples, phases.begun, phases.net, tuple(phases.spent))

    def _last_step(self) -> _Mark:
        begun = self._reached
        if self._unmeasured is None:
            return begun
        now, steps, samples = self._unmeasured
        pause = now - begun.time
        return _Mark(steps, samples, now, begun.net + pause, (*begun.spent[:-1], begun.spent[-1] + pause))

    def _spent_since_written(self, reached: _Mark) -> list[int]:
        """Return nanoseconds by phase; unmeasured time is divided in proportion."""
        spent = [after - before for after, before in zip(reached.spent, self._written.spent)]
        # A call that began in a pause and outlasts it is not like the measured step.
        unmeasured = min(spent.pop(), self._shortest_ns)
        measured = sum(spent)
        return [phase + phase * unmeasured // measured for phase in spent] if measured else spent

    def _write(self, reached: _Mark) -> None:
        """Append the record of everything since the last one."""
        written, travelled = self._written, self._traffic.travelled()
        if reached.time - self._looked > _LOOK_NS:
            self._memory, self._looked = self._ask_memory(), reached.time
        before, losses = self._before, self._losses
        spent = self._spent_since_written(reached)
        self._file.write(
            [
                reached.steps,
                reached.steps - written.steps,
                written.time,
                reached.time,
                spent[Phase.DATA],
                spent[Phase.FORWARD],
                spent[Phase.BACKWARD],
                spent[Phase.OPTIMIZER],
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
        """Listen to phases and collectives if the next step is part of the timeline."""
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
