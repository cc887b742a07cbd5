"""Runs a function on ranks, from a notebook or a script: `ronde.launch(fn, ranks=2)`."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ronde.cluster.devices import device_of_ranks
from ronde.cluster.linux import check_linux
from ronde.errors import FunctionError, UsageError
from ronde.launch.child_command import run_launcher
from ronde.launch.failure import ErrorFile, first_failure, read_error
from ronde.launch.notebook_shell import cell_label, in_brief
from ronde.launch.pickle_by_value import dump, learn_sources
from ronde.plan import Plan, read_plan
from ronde.trace.events import read_events
from ronde.trace.run_directory import RunDirectory

__all__ = ["CALL", "RESULT", "launch", "launch_pickled", "pickled_call", "read_call"]

# Files in the run directory: the call, and the result of rank 0's call.
CALL, RESULT = "call.pickle", "result.pickle"


def launch(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    ranks: int = 2,
    plan: Plan | str | None = None,
    seed: int | None = None,
) -> Any:
    """Call `fn(*args)` on every rank, and return the result of rank 0.

    Each rank is a new process: the function and its arguments travel by pickle, or by cloudpickle where
    it is installed, which takes functions of a notebook and closures too. (A process forked from a
    notebook would inherit locks of torch's threads, which do not exist in it, and hang.) What
    rank 0 prints appears here, with the progress of a long run; tensors and models among the results come
    back whole, on the CPU.

        >>> def train(epochs):                                              # doctest: +SKIP
        ...     model, loader = ...                                         # as on one device
        ...     return model.state_dict()
        >>> weights = ronde.launch(train, args=(3,), ranks=2)               # doctest: +SKIP

    Args:
        fn: an ordinary single-device training function.
        args: its positional arguments.
        ranks: number of ranks, on this host.
        plan: plan, like `ronde run --plan`; default ddp.
        seed: seed, like `ronde run --seed`; default: drawn, and printed.

    Raises:
        UsageError: the function cannot be pickled, or `ronde run` would refuse the run.
        FunctionError: the function raised on some rank; the message holds that rank's traceback.
        KeyboardInterrupt: the user typed Ctrl-C; the ranks have ended.
    """
    if not callable(fn):
        raise UsageError(f"ronde.launch takes a function, not {_short(fn)}; pass train, not train() [R170]")
    words: list[str] = []
    if plan is not None:
        words += ["--plan", str(plan)]
    words += [] if seed is None else ["--seed", str(seed)]
    return launch_pickled(pickled_call(fn, tuple(args)), words, ranks=ranks)


def launch_pickled(
    call: bytes, words: Sequence[str], *, ranks: int, program: str = "ronde.runtime.function"
) -> Any:
    """Run a program on ranks that reads a pickled call and writes its result.

    Both are in the run directory.

    Args:
        call: content of the file of the call.
        words: options of `ronde run`.

    Raises:
        UsageError, FunctionError, KeyboardInterrupt: as `launch`.
    """
    check_linux()
    if "--plan" in words:  # refused here, before anything starts
        plan = words[words.index("--plan") + 1]
        read_plan(plan, ranks=ranks, device=device_of_ranks(os.environ))
    directory = RunDirectory.create(None, os.environ)
    (directory.path / CALL).write_bytes(call)
    directory.release()
    place = str(directory.path)
    run = ["run", "-H", f"localhost:{ranks}", *words, "--run-dir", place, "-m", program, place]
    try:
        code = run_launcher(run, directory.pulse)
    except KeyboardInterrupt as interrupt:
        raise in_brief(interrupt, f"KeyboardInterrupt: the {ranks} ranks have ended") from None
    if code == 0:
        return pickle.loads((directory.path / RESULT).read_bytes())
    raise _error(directory, ranks, code)


def pickled_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle a call, preceded by the import path and by sources without a file.

    Raises:
        UsageError: the function cannot be pickled.
    """
    name = getattr(fn, "__qualname__", fn)
    own = getattr(fn, "__module__", None) == "__main__" or "<locals>" in getattr(fn, "__qualname__", "")
    by_value = importlib.util.find_spec("cloudpickle") is not None
    if own and not by_value:
        raise UsageError(
            f"{name} is defined in this notebook or script, so it can be sent to ranks by cloudpickle only; "
            "pip install 'ronde[notebook]', or move it to a module [R171]"
        )
    call, sources = io.BytesIO(), {}
    try:
        if by_value:
            sources = dump((fn, args), call, label=cell_label())
        else:
            pickle.dump((fn, args), call)
    except Exception as error:  # pickling runs code of the user's objects
        raise UsageError(
            f"{name} and its arguments cannot be sent to the ranks: {error}; create such objects inside of "
            "the function [R171]"
        ) from error
    return pickle.dumps(([os.path.abspath(each) for each in sys.path], sources)) + call.getvalue()


def read_call(data: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Load a call of `pickled_call`, and use its import path."""
    call = io.BytesIO(data)
    sys.path[:], sources = pickle.load(call)
    learn_sources(sources)
    return pickle.load(call)


def _error(directory: RunDirectory, ranks: int, code: int) -> FunctionError:
    found: dict[int, ErrorFile] = {}
    for rank in range(ranks):
        error = read_error(directory.error(rank))
        if error is not None:
            found[rank] = error
    first = first_failure([], found)
    if first is not None and first.error is not None and 0 in found and found[0].tells_the_same(first.error):
        first = first_failure([], {0: found[0]})  # as the run has told it
    if first is None or first.error is None:
        ends = [event.text for event in read_events(directory.path) if event.kind == "end"]
        told = f"{ends[-1]}, see above" if ends else f"ronde run ended with exit code {code}, see above"
        error = FunctionError(f"{told}; logs of all ranks: {directory.path} [R172]")
    else:
        told = first.summary
        trace = f"\n{first.error.traceback}" if first.error.kind == "script" else ""
        error = FunctionError(f"{told}; logs of all ranks: {directory.path}{trace} [R172]")
    return in_brief(error, f"FunctionError: {told}")


def _short(value: Any) -> str:
    """Shorten a result, which may be a whole model."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"a {type(value).__name__}"
