"""One rank: `python -m ronde.runtime.worker`, configured by its `RankConfig`."""

from __future__ import annotations

import signal

# Until the script begins, Ctrl-C ends a rank silently: a traceback of these imports would not help the user.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import atexit
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ronde.errors import DivergedError, PeerLost, RaisedAlone, RondeError
from ronde.launch.rank_config import RankConfig
from ronde.launch.run_spec import DEFAULT_PLAN
from ronde.messages import as_error, as_note
from ronde.runtime.account import give_account, open_tally, summarize
from ronde.runtime.ending import exit_code, groups_have_threads, leave
from ronde.runtime.heartbeat import show_signs_of_life
from ronde.runtime.script import execute
from ronde.runtime.torchrun import torchrun_environment
from ronde.runtime.tracebacks import formatted, show, show_those_of_threads
from ronde.trace.counters import Tally

if TYPE_CHECKING:
    from ronde.patching.patches import Patches
    from ronde.runtime.local_view import LocalView
    from ronde.runtime.memory.meter import MemoryMeter
    from ronde.runtime.publishing import Publishing
    from ronde.runtime.session import Session

__all__ = ["main"]

# How long a rank that lost a peer waits to be ended by the launcher, which knows who failed first.
_WAIT_FOR_END = 10
# The same for torchrun, which ends ranks as soon as one of their host is gone, but not those of other hosts.
_WAIT_FOR_TORCHRUN = 3
_CAUGHT_ALONE = (
    "the script would catch this, but only one rank has raised it, while others wait for its tensors, so "
    "the run ends. Check for it before the model is called, or take a plan without pipeline [R192]"
)


def main() -> None:
    """Run this rank's script, then end the rank."""
    config = RankConfig.take_from(os.environ)
    joined: list[Session | LocalView] = []

    def left_alone() -> bool:
        # Groups of ronde's own are joined by an exit handler.
        return groups_have_threads() and all(session.retired for session in joined)

    try:
        _run_and_report(config, joined)
    except (SystemExit, KeyboardInterrupt) as end:
        if not left_alone():
            raise
        code = exit_code(end)
    else:
        if not left_alone():
            return
        code = 0
    leave(code)  # here, where no exception holds the script's frames any more


def _run_and_report(config: RankConfig, joined: list[Session | LocalView]) -> None:
    try:
        _run(config, joined)
    except SystemExit as end:
        _report_exit(config, end)
        raise
    except DivergedError as diverged:
        _end_diverged(config, diverged)
    except RaisedAlone as alone:
        _end_by(config, alone.error, _CAUGHT_ALONE)
    except PeerLost as lost:
        _report(config, "peer", lost, str(lost))
        ours = config.place.has_launcher
        if not ours and not config.place.observed:
            own = f"rank {config.place.rank} lost"
            told = str(lost) if str(lost).startswith(own) else f"{own} its peers ({lost})"
            print(f"ronde: {as_error(told)}", file=sys.stderr, flush=True)
        signal.alarm(_WAIT_FOR_END if ours else _WAIT_FOR_TORCHRUN)
        signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
        while True:
            signal.pause()
    except KeyboardInterrupt as interrupt:
        show(interrupt)
        # The interpreter runs its exit handlers, and dies of the signal.
        sys.excepthook = lambda *_: None
        raise
    except RondeError as error:
        _refuse(config, error)
        sys.exit(error.exit_code)
    except BaseException as error:
        _end_by(config, error)


def _end_by(config: RankConfig, error: BaseException, advice: str = "") -> NoReturn:
    """Report an exception of the script, and end this rank with it."""
    from ronde.runtime.hints import hint

    advice = advice or hint(error, config)
    words = f"ronde: {as_note(advice)}\n" if advice else ""
    _report(config, "script", error, formatted(error) + words, advice=advice)
    show(error)
    sys.stderr.write(words)
    sys.exit(1)


def _end_diverged(config: RankConfig, diverged: DivergedError) -> NoReturn:
    _report(config, "diverged", diverged, str(diverged), paths=diverged.paths)
    if not config.place.has_launcher and not config.place.observed:
        print(f"ronde: {as_error(str(diverged))}", file=sys.stderr)
    # Exit handlers might begin collectives with the other ranks.
    _end_without_handlers(1)


def _refuse(config: RankConfig, error: RondeError) -> None:
    _report(config, "ronde", error, str(error))
    print(f"ronde: {as_error(str(error))}", file=sys.stderr)


def _end_from_a_thread(config: RankConfig, error: DivergedError | RondeError) -> NoReturn:
    """End the rank from another thread than the main one.

    The main thread may be waiting for the thread that failed, so it cannot end the rank.
    """
    if isinstance(error, DivergedError):
        _end_diverged(config, error)
    _refuse(config, error)
    _end_without_handlers(error.exit_code)


def _end_without_handlers(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _run(config: RankConfig, joined: list[Session | LocalView]) -> None:
    """Run the script; append a session that joins it to other ranks to `joined`."""
    vitals = show_signs_of_life(config)
    if config.run.native:
        os.environ.update(torchrun_environment(config))
        _hear_interrupts()
        execute(config.run.script, config.run.arguments, module=config.run.module)
        return
    from ronde.patching.patches import Patches
    from ronde.process import seeds
    from ronde.process.tensor_hash import number_tensors

    if config.place.world_size > 1:
        number_tensors()
    seeds.seed_all(config.run.seed)
    entropy = Patches()
    seeds.install(entropy, config.run.seed)
    tally = open_tally(config)
    tally.vitals = vitals
    notes: dict[str, None] = {}
    session = _session(config, tally, entropy, notes)
    publishing = _publish_alone(config, notes) if session is None else None
    if session is not None:
        joined.append(session)
    meter = _count_steps(config, tally) if session is None else None
    from ronde.runtime.recording import start_recording

    readers = start_recording(config, tally, session)
    # Above all other layers, because recorders of values that the script reads need the script's line.
    for extension in config.run.extensions:
        name, _, function = extension.partition(":")
        getattr(importlib.import_module(name), function)(session)
    _hear_interrupts()
    show_those_of_threads(lambda error: _end_from_a_thread(config, error))
    tally.begin()
    checkpoints = getattr(session, "checkpoints", None)
    if checkpoints is not None:
        for name, reader in readers.items():
            checkpoints.hear_through(reader, name)
        checkpoints.begin()
    try:
        execute(config.run.script, config.run.arguments, module=config.run.module)
    except BaseException as end:
        if checkpoints is not None:
            checkpoints.abandon()
        if session is not None:
            session.files.stop_waiting()
        if isinstance(end, SystemExit) and end.code in (None, 0):
            _finish(publishing)
            _conclude(config, tally, session, meter, notes)
        raise
    finally:
        if tally.recorder is not None:
            tally.recorder.close()
    _finish(publishing)
    _conclude(config, tally, session, meter, notes)


def _hear_interrupts() -> None:
    """Restore Ctrl-C for the script, as in plain Python."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _session(
    config: RankConfig, tally: Tally, entropy: Patches, notes: dict[str, None]
) -> Session | LocalView | None:
    """Join this rank to the others; None for one without a boundary.

    A rank that is alone may need none.

    Args:
        notes: sentences about a rank without a session.
    """
    alone = config.place.world_size == 1 and not config.run.checkpoint
    if alone and config.run.plan == DEFAULT_PLAN:
        return None
    from ronde.plan import Compute, Plan, State

    plan = Plan.parse(config.run.plan)
    if alone and plan.compute == Compute() and plan.state.on(1) == State():
        return None
    from ronde.patching.patches import Patches
    from ronde.runtime import compute_axis

    if alone and not plan.state.server_count and not compute_axis.needs_boundary(plan):
        compute_axis.install_alone(plan, Patches(), notes.setdefault)
        return None
    from ronde.runtime.api import activate

    if plan.in_local_view:
        from ronde.runtime.local_view import LocalView as kind
    else:
        from ronde.runtime.session import Session as kind

    session = kind(config, plan, tally, entropy)
    # First registered, last run: the script's own exit handlers may still write files.
    atexit.register(session.close)
    session.install()
    activate(session)
    return session


def _publish_alone(config: RankConfig, notes: dict[str, None]) -> Publishing | None:
    """Make the publisher of one rank without a session."""
    if not config.run.publish:
        return None
    from ronde.patching.patches import Patches
    from ronde.plan import Plan
    from ronde.runtime.publishing import Publishing

    publishing = Publishing(config, Plan.parse(config.run.plan), say=notes.setdefault)
    publishing.install(Patches())
    return publishing


def _finish(publishing: Publishing | None) -> None:
    if publishing is not None:
        publishing.finish()


def _count_steps(config: RankConfig, tally: Tally) -> MemoryMeter:
    """Count the steps of a single rank, the only hook into its plain python."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from ronde.runtime.memory.meter import MemoryMeter

    meter = MemoryMeter(on_cuda=config.place.device == "cuda", hears_calls=False)

    def after_step(optimizer: Any, *_: Any) -> None:
        tally.step()
        meter.stepped(optimizer)

    register_optimizer_step_post_hook(after_step)
    return meter


def _conclude(
    config: RankConfig,
    tally: Tally,
    session: Session | LocalView | None,
    meter: MemoryMeter | None,
    notes: Iterable[str],
) -> None:
    """Write the summary of the run, with notes for the user."""
    if session is None:
        memory = None if meter is None else meter.memory()
        give_account(config, summarize(config, tally, notes=list(notes), memory=memory))
    elif not session.retired:
        session.finish()
        give_account(config, session.summary())


def _report_exit(config: RankConfig, end: SystemExit) -> None:
    """Report an exit code at once, before peers notice the end.

    The end of the interpreter takes time.
    """
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if code:
        _report(config, "exit", end, str(code & 0xFF))


def _report(
    config: RankConfig,
    kind: str,
    error: BaseException,
    text: str,
    *,
    advice: str = "",
    paths: Sequence[tuple[int, str, str]] = (),
) -> None:
    """Write a failure report where the launcher finds it."""
    content = {
        "rank": config.place.rank,
        "time": time.time(),
        "kind": kind,
        "type": type(error).__name__,
        "message": str(error),
        "traceback": text,
        "advice": advice,
        "paths": paths,
    }
    path = Path(config.place.run_dir) / f"rank-{config.place.rank}.error.json"
    temporary = path.with_suffix(f".{threading.get_ident()}")
    try:
        # os.open is not mediated; the file appears whole.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(descriptor, json.dumps(content).encode())
        os.close(descriptor)
        os.rename(temporary, path)
    except OSError as problem:
        print(f"ronde: cannot write {path}: {problem.strerror}", file=sys.stderr)


if __name__ == "__main__":
    main()
