"""Runs a function on ranks, from a notebook or a script: `ronde.launch(fn, ranks=2)`."""

from __future__ import annotations

import codecs
import contextlib
import importlib.util
import io
import os
import pickle
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

from ronde.cluster.devices import device_of_ranks
from ronde.cluster.linux import check_linux
from ronde.errors import FunctionError, UsageError
from ronde.launch.failure import ErrorFile, first_failure, read_error
from ronde.plan import Plan, read_plan
from ronde.trace.run_directory import RunDirectory

__all__ = ["CALL", "RESULT", "launch", "pickled_call", "read_call", "run_launcher"]

# Files in the run directory: the call, and the result of rank 0's call.
CALL, RESULT = "call.pickle", "result.pickle"

# A separate process, because the launcher takes over signals, children and orphans, which must stay with a
# notebook's kernel. It dies with the kernel.
LAUNCHER = "\n".join(
    (
        "import sys",
        "import ronde.launch.linux_process as linux",
        "linux.bind_to_parent(linux.load_prctl(), int(sys.argv[1]))",
        "from ronde.cli import main",
        "main(sys.argv[2:])",
    )
)


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
    rank 0 prints appears here; tensors among the results come back whole.

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
    check_linux()
    words: list[str] = []
    if plan is not None:
        words += ["--plan", str(read_plan(str(plan), ranks=ranks, device=device_of_ranks(os.environ)))]
    words += [] if seed is None else ["--seed", str(seed)]
    call = pickled_call(fn, tuple(args))
    directory = RunDirectory.create(None, os.environ)
    (directory.path / CALL).write_bytes(call)
    directory.release()
    place = str(directory.path)
    run = ["run", "-H", f"localhost:{ranks}", *words, "--run-dir", place]
    code = run_launcher([*run, "-m", "ronde.runtime.function", place])
    if code == 0:
        return pickle.loads((directory.path / RESULT).read_bytes())
    raise _error(directory, ranks, code)


def pickled_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle a call, preceded by the import path that ranks need to load it.

    Raises:
        UsageError: the function cannot be pickled.
    """
    name = getattr(fn, "__qualname__", fn)
    own = getattr(fn, "__module__", None) == "__main__" or "<locals>" in getattr(fn, "__qualname__", "")
    if importlib.util.find_spec("cloudpickle") is not None:
        import cloudpickle

        dump: Callable[[Any], bytes] = cloudpickle.dumps
    elif own:
        raise UsageError(
            f"{name} is defined in this notebook or script, so it can be sent to ranks by cloudpickle only; "
            "pip install 'ronde[notebook]', or move it to a module [R171]"
        )
    else:
        dump = pickle.dumps
    try:
        return pickle.dumps([os.path.abspath(each) for each in sys.path]) + dump((fn, args))
    except Exception as error:  # pickling runs code of the user's objects
        raise UsageError(
            f"{name} and its arguments cannot be sent to the ranks: {error}; create such objects inside of "
            "the function [R171]"
        ) from error


def read_call(data: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Load a call of `pickled_call`, and use its import path."""
    call = io.BytesIO(data)
    sys.path[:] = pickle.load(call)
    return pickle.load(call)


def run_launcher(words: Sequence[str]) -> int:
    """Run a `ronde` command with its output shown here; return its exit code."""
    return _run([sys.executable, "-c", LAUNCHER, str(os.getpid()), *words])


def _run(command: Sequence[str]) -> int:
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # this process passes Ctrl-C on, once
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        streams: dict[IO[bytes], Any] = {process.stdout: sys.stdout, process.stderr: sys.stderr}
        try:
            _show(streams)
            return process.wait()
        except BaseException:
            # As Ctrl-C at a terminal would: the ranks may save, and a second one ends them.
            _interrupt(process)
            with contextlib.suppress(KeyboardInterrupt):
                _show(streams)
                process.wait()
            if process.poll() is None:
                _interrupt(process)
            raise


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)


def _show(streams: dict[IO[bytes], Any]) -> None:
    """Show the output of both streams as it comes, until they end."""
    with selectors.DefaultSelector() as selector:
        for source, target in streams.items():
            if not source.closed:
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                selector.register(source, selectors.EVENT_READ, (target, decoder))
        while selector.get_map():
            for key, _ in selector.select():
                target, decoder = key.data
                data = os.read(key.fd, 65536)
                target.write(decoder.decode(data, final=not data))
                target.flush()
                if not data:
                    selector.unregister(key.fileobj)


def _error(directory: RunDirectory, ranks: int, code: int) -> FunctionError:
    found: dict[int, ErrorFile] = {}
    for rank in range(ranks):
        error = read_error(directory.error(rank))
        if error is not None:
            found[rank] = error
    first = first_failure([], found)
    if first is None or first.error is None:
        return FunctionError(
            f"the ranks ended with exit code {code}, see above; logs of all ranks: {directory.path} [R172]"
        )
    return FunctionError(
        f"{first.summary}; logs of all ranks: {directory.path}\n{first.error.traceback} [R172]"
    )


def _short(value: Any) -> str:
    """Shorten a result, which may be a whole model."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"a {type(value).__name__}"
