"""Recording of a rank's steps: its files, and hooks into the script."""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ronde.batches.first_tensor import first_tensor
from ronde.launch.rank_config import RankConfig
from ronde.patching.patches import Patches
from ronde.patching.stacks import BACKWARD, GRAD, MODULE_CALL, NEXT_BATCH
from ronde.rng.device_states import device_in_use
from ronde.trace.counters import Tally
from ronde.trace.events import write_event
from ronde.trace.phases import Phase, Phases
from ronde.trace.recorder import NO_TRAFFIC, StepRange, TraceRecorder, TrafficSource
from ronde.trace.spans import SpanFile, spans_path
from ronde.trace.step_file import StepFile, steps_path

if TYPE_CHECKING:
    from ronde.modules.calls import Calls

__all__ = ["open_recorder", "record", "start_recording"]


class _Joined(Protocol):
    """Connection of a rank to others: a session, or a local view."""

    patches: Patches

    def traffic(self) -> TrafficSource: ...


Readers = Mapping[str, Callable[..., Any]]
"""What stands for the script's readings of numbers, by their names."""

# Module globals are found faster than attributes of a class.
OPTIMIZER, UNMEASURED = Phase.OPTIMIZER, Phase.UNMEASURED
_PAGE = os.sysconf("SC_PAGE_SIZE")


def start_recording(config: RankConfig, tally: Tally, joined: _Joined | None) -> Readers:
    """Record this rank's steps from now on; the caller closes `tally.recorder`.

    Args:
        joined: None for a rank that is alone and has no boundary.

    Returns:
        result of `record`.
    """
    traffic = NO_TRAFFIC if joined is None else joined.traffic()
    tally.waited = traffic.waited_ns
    recorder = open_recorder(config, traffic)
    if config.place.rank == 0:
        write_event(
            Path(config.place.run_dir),
            "start",
            config.run.script,
            rank=0,
            script=config.run.script,
            plan=config.run.plan,
            seed=config.run.seed,
            ranks=config.place.world_size,
            device=config.place.device,
        )
    readers: Readers = {}
    if recorder is not None:
        tally.recorder = recorder
        patches = Patches() if joined is None else joined.patches
        readers = record(recorder, patches, getattr(joined, "calls", None))
        if joined is None:
            _count_samples(tally, patches)
    return readers


def open_recorder(config: RankConfig, traffic: TrafficSource) -> TraceRecorder | None:
    """Open the recorder of this rank's steps; None if the run directory is full.

    A run works without it.
    """
    directory = Path(config.place.run_dir)
    try:
        file = StepFile(
            steps_path(directory, config.place.rank),
            rank=config.place.rank,
            world_size=config.place.world_size,
            process=os.getpid(),
            clocks=(time.time_ns(), perf_counter_ns()),
            host=platform.node(),
        )
        spans = None
        if config.run.trace_steps:
            spans = (
                SpanFile(spans_path(directory, config.place.rank)),
                StepRange.parse(config.run.trace_steps),
            )
    except OSError:
        return None
    return TraceRecorder(file, traffic, _memory(on_cuda=config.place.device == "cuda"), spans)


def _memory(*, on_cuda: bool) -> Callable[[], tuple[int, int]]:
    """Return a reader of this process's resident bytes, and torch's on its device."""
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def read() -> tuple[int, int]:
        try:
            resident = int(os.pread(statm, 128, 0).split()[1]) * _PAGE
        except (OSError, IndexError):  # the script has closed all files
            resident = 0
        held = torch.accelerator.memory_reserved() if on_cuda and device_in_use() else 0
        return resident, held

    return read


def record(recorder: TraceRecorder, patches: Patches, calls: Calls | None) -> Readers:
    """Install hooks that inform `recorder` of the script's actions.

    They are installed above all other layers around the script, so the time of those layers counts to the
    phase that they serve.

    Args:
        calls: layer that sees calls of modules already; None without one.

    Returns:
        functions that read the counts from now on.
    """
    phases = recorder.phases
    if calls is not None:
        calls.called = functools.partial(_forward, recorder)
    else:
        _see_calls(recorder, patches)
    for stack, phase in ((NEXT_BATCH, Phase.DATA), (BACKWARD, Phase.BACKWARD), (GRAD, Phase.BACKWARD)):
        patches.layer(stack, "recording", functools.partial(_counted, phases, phase))
    _see_optimizers(phases, patches)
    return _see_reads(recorder, patches)


def _forward(recorder: TraceRecorder, call: Callable[..., Any], *args: Any) -> Any:
    """Carry out an outermost call of a module."""
    phases = recorder.phases
    if phases.current > Phase.OPTIMIZER:
        return call(*args)
    before = phases.enter(Phase.FORWARD)
    try:
        return call(*args)
    finally:
        phases.enter(before)
        recorder.called()


def _count_samples(tally: Tally, patches: Patches) -> None:
    """Count samples before each step on one rank, where no boundary counts them."""
    here = tally.recorder.phases.here if tally.recorder is not None else lambda: False

    def around(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def next_batch(iterator: Any) -> Any:
            data = plain(iterator)
            if here() and torch.is_grad_enabled():
                first = first_tensor(data)
                tally.deliver(0, len(first) if first is not None and first.dim() else None)
            return data

        return next_batch

    patches.layer(NEXT_BATCH, "samples", around)


def _see_calls(recorder: TraceRecorder, patches: Patches) -> None:
    """Install hooks on module calls, on one rank without a boundary."""
    phases = recorder.phases

    def around(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            # Also inside of a model, where it must be fast. Variables that the compiler reads stay as without
            # ronde.
            if is_dynamo_compiling():
                return plain(module, *args, **kwargs)
            current = phases.current
            if current == UNMEASURED:
                if perf_counter_ns() < phases.resume_at:
                    return plain(module, *args, **kwargs)
            elif current > OPTIMIZER:
                return plain(module, *args, **kwargs)
            if not phases.here():
                return plain(module, *args, **kwargs)
            phases.paused()
            before = phases.enter(Phase.FORWARD)
            try:
                return plain(module, *args, **kwargs)
            finally:
                phases.enter(before)
                recorder.called()

        return call

    patches.layer(MODULE_CALL, "recording", around)
    compiler: Any = torch.compile

    @functools.wraps(compiler)
    def compile_(model: Any = None, **options: Any) -> Any:
        # imported here, because it would slow the start of a run without a compiler
        from ronde.modules.compiled import pass_over

        pass_over(torch.nn.Module.__call__)
        return compiler(model, **options)

    patches.set(torch, "compile", compile_)


def _counted(phases: Phases, phase: int, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Measure a function as this phase."""

    @functools.wraps(plain)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or phases.paused() or not phases.here():
            return plain(*args, **kwargs)
        before = phases.enter(phase)
        try:
            return plain(*args, **kwargs)
        finally:
            phases.enter(before)

    return counted


def _see_optimizers(phases: Phases, patches: Patches) -> None:
    around: list[int] = []  # the phase before each of the running steps

    def begin(*_: Any) -> None:
        if (phases.current == UNMEASURED and phases.paused()) or not phases.here():
            return
        if phases.current != Phase.OPTIMIZER:
            around.clear()  # a step that raised has left its mark
        around.append(phases.enter(Phase.OPTIMIZER))

    def end(*_: Any) -> None:
        if around and phases.here():
            before = around.pop()
            # The recorder may have entered this phase already, or have begun a pause.
            if phases.current not in (before, Phase.UNMEASURED):
                phases.enter(before)

    patches.undo(register_optimizer_step_pre_hook(begin).remove)
    patches.undo(register_optimizer_step_post_hook(end).remove)


def _see_reads(recorder: TraceRecorder, patches: Patches) -> Readers:
    """Observe each loss that the script reads: a scalar with a graph."""
    phases = recorder.phases
    item: Any = torch.Tensor.item
    to_float: Any = torch.Tensor.__float__
    to_text: Any = torch.Tensor.__format__

    def is_loss(value: torch.Tensor) -> bool:
        if is_dynamo_compiling() or OPTIMIZER <= phases.current != UNMEASURED:
            return False
        # Read so, torch creates no Python object for the node of the graph.
        return value.requires_grad and not value.is_leaf and phases.here()

    @functools.wraps(item)
    def read_item(value: torch.Tensor, /) -> Any:
        result = item(value)
        if is_loss(value):
            recorder.read(result)
        return result

    @functools.wraps(to_float)
    def read_float(value: torch.Tensor, /) -> float:
        result = to_float(value)
        if is_loss(value):
            recorder.read(result)
        return result

    @functools.wraps(to_text)
    def read_text(value: torch.Tensor, /, form: str = "") -> str:
        if is_loss(value) and not value.dim():
            recorder.read(item(value))
        return to_text(value, form)

    patches.set(torch.Tensor, "item", read_item)
    patches.set(torch.Tensor, "__float__", read_float)
    patches.set(torch.Tensor, "__format__", read_text)
    return {"item": read_item, "__float__": read_float}
