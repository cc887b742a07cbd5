"""`ronde run --checkpoint`: a run is saved at a step, and brought back to it, without a word in the script.

A checkpoint is cut where a training step begins, when all of the step before is over. To resume, the script
runs again from its beginning. Whatever computes (calls of models, backward, steps of optimizers) is skipped;
what the script reads comes from the journal; what it prints and writes goes nowhere. Where the journal ends,
tensors, optimizers and generators get the values of the checkpoint, and the script goes on.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter  # bound here: the module's own are replaced for scripts
from time import time as clock
from typing import Any

import torch

from ronde.checkpoint.cadence import Cadence
from ronde.checkpoint.generators import Draws, put_generators
from ronde.checkpoint.held import Held, held_by_script
from ronde.checkpoint.host_reads import HostReads
from ronde.checkpoint.journal import Entry, Journal, Mismatch
from ronde.checkpoint.manifest import Manifest, checkpoints_in
from ronde.checkpoint.mirror import Mirror, is_url
from ronde.checkpoint.outline import NoOutline, Outlines, build
from ronde.checkpoint.same_script import changes_since, script_digest
from ronde.checkpoint.schedule import Schedule
from ronde.checkpoint.state import HostCopies, State, Unchanged, put_back, take
from ronde.checkpoint.store import Store, newest
from ronde.comm.agreement import Agreement
from ronde.comm.process_group import Comm
from ronde.errors import RondeError
from ronde.files import ScriptFiles
from ronde.launch.rank_config import RankConfig
from ronde.launch.repeated_lines import count_lines, write_position
from ronde.patching.patches import Patches
from ronde.patching.stacks import ADD_PARAM_GROUP, BACKWARD, GRAD, MODULE_CALL, NEXT_BATCH
from ronde.rng.random_state import host_states
from ronde.tensor.global_tensor import GlobalTensor, materialize
from ronde.trace.events import write_event

__all__ = ["Checkpoints"]

_REAL = "computed"
"""Stands for the output of a call that must be made again, as it does more than to return something."""


class Checkpoints:
    """One rank's part in saving and resuming; all ranks make the same calls.

    Args:
        in_script: whether the code that runs is the script's, on its main thread.
        has_gradient: whether a leaf has a gradient, perhaps in parts, without gathering it.
        say: hears what the user should know at the end.
        on_resumed: hears at which step the script has been brought back.

    Raises:
        UsageError: there is no checkpoint to resume from, or the folder cannot be written.
    """

    def __init__(
        self,
        config: RankConfig,
        *,
        comm: Comm,
        in_script: Callable[[], bool],
        files: ScriptFiles,
        agreement: Agreement,
        has_gradient: Callable[[torch.Tensor], bool],
        say: Callable[[str], Any],
        on_resumed: Callable[[int], object] = lambda step: None,
    ) -> None:
        self._on_resumed = on_resumed
        self._config, self._comm, self._say = config, comm, say
        self._in_script, self._files = in_script, files
        self._has_gradient = has_gradient
        self._history = files.remember()
        self._leads = comm.rank == 0
        self._schedule = Schedule(Cadence(*config.checkpoint_every), self._sum, leads=self._leads)
        folder = Path(config.checkpoint)
        self._mirror = Mirror(config.checkpoint) if is_url(config.checkpoint) else None
        if self._mirror is not None:
            folder = Path(config.run_dir) / "checkpoints"
            if config.resume and config.local_rank == 0:
                self._mirror.fetch(folder)
            comm.barrier()
        self._silence: list[int] = []
        self._resumed: tuple[Manifest, State] | None = None
        self._digest = script_digest(config.script, module=config.module)
        entries: list[Entry] | None = None
        if config.resume and any(checkpoints_in(folder)):
            manifest, state, entries = newest(folder, self._tell)
            self._resumed = manifest, state
            self._tell_changes(manifest)
            self._history.resume(state["files"])
        self._journal = Journal(entries)
        comm.barrier()  # all have read before anybody writes
        self._store = (
            Store(
                folder,
                keep=config.checkpoint_keep,
                journal_bytes=self._resumed[0].journal_bytes if self._resumed else 0,
            )
            if self._leads
            else None
        )
        self._outlines, self._draws = Outlines(), Draws()
        self._reads = HostReads(self._read, self._shaped)
        for name in ("numpy", "tolist"):
            self._reads.hear_through(getattr(GlobalTensor, name), name)
        self._copies = HostCopies() if self._leads else None
        self._unchanged: Unchanged | None = None
        self._writing: threading.Thread | None = None
        self._trouble = ""
        self._ending = False
        # Inside of something that is one entry.
        self._inside = False
        self._runs_script = self._begun = False
        self._calls = self._in_steps = 0
        self._watched: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        self._real: dict[str, bool] = {}
        self._steps = self._told = 0
        self._parameters: list[torch.Tensor] = []
        self._known: set[int] = set()
        self._gradients: dict[int, torch.Tensor] = {}
        self._wrapped: set[type] = set()
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._replay_begun = perf_counter()
        agreement.around = self._agreed

    def install(self, patches: Patches) -> None:
        """Stand around whatever computes; over all else that is put around it."""

        def around_call(plain: Callable[..., Any]) -> Callable[..., Any]:
            def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
                if self._inside or not self._in_script():
                    return plain(module, *args, **kwargs)
                return self._call(plain, module, args, kwargs)

            return call

        def around_next(plain: Callable[..., Any]) -> Callable[..., Any]:
            def next_batch(iterator: Any) -> Any:
                if self._inside or not self._in_script():
                    return plain(iterator)
                if not self._calls and self._steps > self._told:
                    self._at_boundary("next", sys._getframe(1))
                with self._entry():
                    return plain(iterator)

            return next_batch

        def around_backward(plain: Callable[..., Any]) -> Callable[..., Any]:
            def backward(*args: Any, **kwargs: Any) -> None:
                if self._inside or not self._in_script():
                    return plain(*args, **kwargs)
                return self._backward(plain, args, kwargs)

            return backward

        def around_grad(plain: Callable[..., Any]) -> Callable[..., Any]:
            def grad(*args: Any, **kwargs: Any) -> Any:
                if self._inside or not self._in_script():
                    return plain(*args, **kwargs)
                return self._computed("grad", "grad", lambda: plain(*args, **kwargs))

            return grad

        def around_add(plain: Callable[..., Any]) -> Callable[..., Any]:
            def add_param_group(optimizer: Any, param_group: Any) -> None:
                plain(optimizer, param_group)
                self._know(optimizer)
                self._wrap_step(patches, type(optimizer))

            return add_param_group

        plain_sleep: Callable[[float], None] = time.sleep

        def sleep(seconds: float, /) -> None:
            if not (self._journal.replaying and self._in_script()):  # what it waited for has passed
                plain_sleep(seconds)

        patches.set(time, "sleep", sleep)
        patches.layer(MODULE_CALL, "checkpoints", around_call)
        patches.layer(NEXT_BATCH, "checkpoints", around_next)
        patches.layer(BACKWARD, "checkpoints", around_backward)
        patches.layer(GRAD, "checkpoints", around_grad)
        patches.layer(ADD_PARAM_GROUP, "checkpoints", around_add)
        patches.undo(self._reads.end)

    def hear_through(self, wrapper: Callable[..., Any], name: str) -> None:
        """As `HostReads.hear_through`."""
        self._reads.hear_through(wrapper, name)

    def attempt(self) -> Callable[[], None]:
        """Something begins that may have to be done again; the result is called then."""
        count = len(self._journal)
        return lambda: self._journal.forget_since(count)

    def begin(self) -> None:
        """The script begins."""
        self._runs_script = True
        if self._journal.replaying:
            self._be_silent()
        elif self._config.resume and self._leads:
            write_position(Path(self._config.run_dir), {"stdout": 0, "stderr": 0})
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_termination)

    def finish(self) -> None:
        """The script has ended, on all ranks; return when the last checkpoint is durable.

        Raises:
            RondeError: it has ended before it came to where it was resumed.
        """
        self._runs_script = False
        self._stop_replay()
        if self._writing is not None:
            self._writing.join()
        if self._trouble:
            self._say(f"the last checkpoint was not written: {self._trouble}")
        elif self._leads and self._told == 0 and not self._resumed:
            self._say(
                f"no checkpoint was made: the script came to no place where one is due "
                f"({self._steps} optimizer steps)"
            )

    def _on_termination(self, *_: Any) -> None:
        """The run is to end: it saves first, where its next step begins. A second signal does not wait."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not self._begun or self._journal.replaying:
            self._tell(
                "ended by SIGTERM before its first step, so nothing was saved"
                if self._resumed is None
                else "ended by SIGTERM on its way back to the checkpoint, which stays as it is"
            )
            os.kill(os.getpid(), signal.SIGTERM)
        self._ending = True

    def _end(self) -> None:
        """Die of the signal, as the script would have done, when the checkpoint is durable."""
        if self._writing is not None:
            self._writing.join()
        told = self._trouble and f"nothing was saved: {self._trouble}"
        self._tell(told or f"saved at step {self._steps}, as the run is to end; go on by --resume")
        _flush_output()
        self._comm.barrier()
        os.kill(os.getpid(), signal.SIGTERM)

    def abandon(self) -> None:
        """The script has raised: what it says is for the user to read."""
        self._speak_again()

    # What is one entry.

    @contextmanager
    def _entry(self) -> Iterator[None]:
        """Inside, nothing is recorded by itself."""
        self._inside = True
        try:
            with self._reads.lifted():
                yield
        finally:
            self._inside = False

    @contextmanager
    def _recorded(self, kind: str, name: str) -> Iterator[Entry]:
        """Inside, something happens that is one entry, and is skipped on the way back."""
        entry = self._journal.record(kind, name)
        with self._entry():
            before = self._draws.before()
            yield entry
            self._draws.after(entry, before)

    @contextmanager
    def _recalled(self, kind: str, name: str) -> Iterator[Entry]:
        """Inside, what is skipped gets what it had."""
        entry = self._journal.take(kind, name)
        with self._entry():
            yield entry
            if entry.random is not None:
                put_generators(entry.random)

    @contextmanager
    def _of_script(self) -> Iterator[None]:
        """Inside an entry, the script's own code runs: a closure."""
        self._inside = False
        self._in_steps += 1
        if self._begun:
            self._reads.begin()
        try:
            yield
        finally:
            self._reads.end()
            self._in_steps -= 1
            self._inside = True

    def _call(self, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._begin_if_new()
            self._calls += 1
            if not self._in_steps and (self._steps > self._told or self._journal.replaying):
                self._at_boundary("call", sys._getframe(2))
        self._begin_if_new()
        name = type(module).__name__
        self._know_leaves(args, kwargs)
        if self._journal.replaying:
            with self._recalled("call", name) as entry:
                return plain(module, *args, **kwargs) if entry.payload == _REAL else build(entry.payload)
        with self._recorded("call", name) as entry:
            kept = _Kept(module) if self._is_to_be_watched(module) else None
            output = plain(module, *args, **kwargs)
            entry.payload = self._outline(output)
            identity = _identity(module)
            if kept is not None:
                self._real[identity] = self._real.get(identity, False) or kept.changed()
            if self._real.get(identity):
                entry.payload = _REAL
            return output

    def _outline(self, output: Any) -> bytes | str:
        try:
            return self._outlines.of(output)
        except NoOutline:
            return _REAL

    def _is_to_be_watched(self, module: torch.nn.Module) -> bool:
        """At calls 1, 2, 4, 8, ... of each module it is looked at whether it keeps something."""
        count = self._watched.get(module, 0) + 1
        self._watched[module] = count
        return count & (count - 1) == 0

    def _computed(self, kind: str, name: str, act: Callable[[], Any]) -> Any:
        """Something that returns tensors and does nothing else."""
        self._begin_if_new()
        if self._journal.replaying:
            with self._recalled(kind, name) as entry:
                return build(entry.payload)
        with self._recorded(kind, name) as entry:
            output = act()
            try:
                entry.payload = self._outlines.of(output)
            except NoOutline as reason:
                raise self._unrecorded(name, reason) from None
            return output

    def _backward(self, plain: Any, args: Any, kwargs: Any) -> None:
        self._begin_if_new()
        if self._journal.replaying:
            with self._recalled("backward", "backward") as entry:
                self._make_gradients(entry.payload)
            return
        with self._recorded("backward", "backward") as entry:
            plain(*args, **kwargs)
            having = [index for index, value in enumerate(self._parameters) if self._has_gradient(value)]
            entry.payload = self._outlines.of(having)

    def _step(self, plain: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        self._begin_if_new()
        self._history.trained = True
        closure = args[0] if args else kwargs.get("closure")
        name = type(optimizer).__name__
        self._steps += 1
        self._stepped.add(optimizer)
        if self._journal.replaying:
            with self._recalled("step", name) as entry:
                count, outline = entry.payload
                for _ in range(count):
                    with self._of_script(), torch.enable_grad():
                        closure()
                return build(outline)
        count = 0

        def counted(*inner: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            with self._of_script():
                return closure(*inner, **named)

        if closure is not None:
            args, kwargs = ((counted, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": counted})
        with self._recorded("step", name) as entry:
            value = plain(optimizer, *args, **kwargs)
            entry.payload = count, self._outlines.of(value)
            return value

    def _read(self, name: str, act: Callable[[], Any]) -> Any:
        if self._inside or not self._in_script():
            return act()
        if self._journal.replaying:
            return self._journal.take("read", name).payload
        entry = self._journal.record("read", name)
        with self._entry():
            entry.payload = act()
        return _own(entry.payload)

    def _shaped(self, name: str, act: Callable[[], Any]) -> Any:
        if self._inside or not self._in_script():
            return act()
        return self._computed("shape", name, act)

    def _agreed(self, name: str, act: Callable[[], Any]) -> Any:
        if not self._runs_script or self._inside:
            return act()
        if self._journal.replaying:
            return self._journal.take("agreed", name).payload
        entry = self._journal.record("agreed", name)
        entry.payload = act()
        return entry.payload

    def _begin_if_new(self) -> None:
        """From the first call on values may be a model's, which a run on its way back does not have."""
        if not self._begun:
            self._begun = True
            self._unchanged = Unchanged(held_by_script(sys._getframe(1)))
            self._reads.begin()

    # Optimizers and gradients.

    def _wrap_step(self, patches: Patches, kind: Any) -> None:
        if kind in self._wrapped or not hasattr(kind, "step"):
            return
        self._wrapped.add(kind)
        plain = kind.step

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or not self._in_script():
                return plain(optimizer, *args, **kwargs)
            return self._step(plain, optimizer, args, kwargs)

        step.hooked = True  # pyright: ignore[reportFunctionMemberAccess] - torch would put hooks around it
        step.__wrapped__ = plain  # pyright: ignore[reportFunctionMemberAccess]
        patches.set(kind, "step", step)

    def _know(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for value in group["params"]:
                self._know_tensor(value)

    def _know_leaves(self, args: Any, kwargs: Any) -> None:
        """Leaves that a model is given, whose gradients a script may ask for."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf:
                self._know_tensor(value)

    def _know_tensor(self, value: torch.Tensor) -> None:
        if id(value) not in self._known:
            self._known.add(id(value))
            self._parameters.append(value)

    def _make_gradients(self, outline: bytes) -> None:
        for index in build(outline):
            value = self._parameters[index]
            if value.grad is None:
                if index not in self._gradients:
                    self._gradients[index] = torch.zeros_like(value, requires_grad=False)
                value.grad = self._gradients[index]

    # Checkpoints.

    def _at_boundary(self, kind: str, frame: Any) -> None:
        """A step of the script's begins."""
        if self._journal.replaying:
            resumed = self._resumed
            assert resumed is not None
            if self._journal.at_end and resumed[0].boundary == kind and self._steps == resumed[0].step:
                self._resume(frame, *resumed)
            return
        if self._schedule.is_due(self._steps, self._told, ending=self._ending):
            self._save(kind, frame)
        if self._schedule.is_ending:
            self._end()

    def _sum(self, numbers: torch.Tensor) -> torch.Tensor:
        with self._entry():
            return self._comm.all_reduce(numbers.to(self._comm.control_device))

    def _save(self, kind: str, frame: Any) -> None:
        if self._writing is not None:
            self._writing.join()  # what it writes lies in the memory for copies
        assert self._unchanged is not None
        begun = perf_counter()
        with self._entry(), self._files.unmediated(), torch.no_grad():
            held = held_by_script(frame)
            self._check_finds_optimizers(held)
            state = take(held, materialize, self._unchanged, self._copies)
            self._told = self._steps
            if not self._leads:
                return
            _flush_output()  # on the way back what is printed up to here is not printed again
            assert self._store is not None
            assert self._copies is not None
            state["files"], state["sizes"] = self._history.events(), self._history.sizes()
            state["random"] = _random_states()
            manifest = Manifest(
                step=self._steps,
                entries=len(self._journal),
                journal_bytes=0,
                boundary=kind,
                seed=self._config.seed,
                plan=self._config.plan,
                ranks=self._config.world_size,
                script=self._config.script,
                arguments=tuple(self._config.arguments),
                script_digest=self._digest,
            )
            self._draws.settle()
            content = self._journal.fresh()
            manifest = dataclasses.replace(
                manifest, held_up=perf_counter() - begun, state_bytes=self._copies.nbytes, time=clock()
            )
            self._writing = threading.Thread(
                target=self._write, args=(manifest, state, content), name="ronde-checkpoint", daemon=True
            )
            self._writing.start()

    def _check_finds_optimizers(self, held: Held) -> None:
        """A checkpoint without what was trained would be resumed in silence."""
        found = {id(optimizer) for optimizer in held.optimizers.values()}
        stepped, self._stepped = list(self._stepped), weakref.WeakSet()
        if stepped and not any(id(optimizer) in found for optimizer in stepped):
            kind = type(stepped[0]).__name__
            raise RondeError(
                f"--checkpoint: {kind}, which has stepped, is in no variable of the script and of the "
                "objects that its variables lead to; keep it in one, or leave out --checkpoint"
            )

    def _write(self, manifest: Manifest, state: State, content: bytes) -> None:
        assert self._store is not None
        try:
            with self._files.unmediated():
                name = self._store.write(manifest, state, content)
                if self._mirror is not None:
                    self._mirror.push(self._store.folder, name, self._config.checkpoint_keep)
                write_event(
                    Path(self._config.run_dir), "checkpoint", f"step {manifest.step} is saved", rank=0
                )
            self._trouble = ""
        except OSError as error:
            self._trouble = f"{self._config.checkpoint}: {error.strerror or error}"
        except Exception as error:
            self._trouble = f"{type(error).__name__}: {error}"

    def _resume(self, frame: Any, manifest: Manifest, state: State) -> None:
        with self._entry(), self._files.unmediated(), torch.no_grad():
            try:
                put_back(held_by_script(frame), state, materialize)
            except Mismatch as mismatch:
                raise self._mismatch(str(mismatch)) from None
            put_generators(state["random"])
        self._journal.begin_recording()
        self._files.end_replay(state["sizes"])
        self._say_position()
        self._speak_again()
        self._told = self._steps
        self._gradients.clear()
        self._resumed = None
        self._on_resumed(manifest.step)
        self._tell(
            f"resumed at step {manifest.step}, {perf_counter() - self._replay_begun:.1f} s after the start"
        )

    def _stop_replay(self) -> None:
        if self._journal.replaying:
            self._speak_again()
            raise self._mismatch("it has ended before it came there")

    def _mismatch(self, how: str) -> RondeError:
        self._speak_again()
        return RondeError(
            f"the script cannot be brought back to the checkpoint in {self._config.checkpoint}: {how}. It "
            f"must be the same script, and take the same course; see docs/checkpoints.md"
        )

    def _unrecorded(self, name: str, reason: NoOutline) -> RondeError:
        return RondeError(f"--checkpoint cannot record what {name} returns: {reason}; leave out --checkpoint")

    # What the user sees.

    def _tell_changes(self, manifest: Manifest) -> None:
        changes = changes_since(manifest, self._digest, self._config.arguments)
        if changes:
            self._tell(
                f"since the checkpoint of step {manifest.step} the script has changed: "
                f"{' and '.join(changes)}; the steps before it are not done again"
            )

    def _tell(self, words: str) -> None:
        if self._leads and not self._config.quiet:
            os.write(self._silence[1] if self._silence else 2, f"ronde: {words}\n".encode())

    def _be_silent(self) -> None:
        """What the script prints on its way back was printed before."""
        one_file = os.path.samestat(os.fstat(1), os.fstat(2))
        self._silence = [os.dup(1), os.dup(2)]
        for number in (1, 2):
            nowhere = os.dup(1) if number == 2 and one_file else self._nowhere()
            os.dup2(nowhere, number)
            os.close(nowhere)

    def _nowhere(self) -> int:
        """A file that nobody sees; on rank 0 its lines are counted."""
        if not self._leads:
            return os.open(os.devnull, os.O_WRONLY)
        path = os.path.join(self._config.run_dir, "rank-0.replayed")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.unlink(path)
        return file

    def _say_position(self) -> None:
        """Tell the launcher how many lines were printed by here in the run that is resumed."""
        if not self._silence or not self._leads:
            return
        _flush_output()
        lines = {"stdout": count_lines(1), "stderr": count_lines(2)}
        write_position(Path(self._config.run_dir), lines)

    def _speak_again(self) -> None:
        if not self._silence:
            return
        _flush_output()
        for number, kept in zip((1, 2), self._silence):
            os.dup2(kept, number)
            os.close(kept)
        self._silence = []


class _Kept:
    """What a module has beside parameters and buffers, before and after a call."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before = self._look()

    def changed(self) -> bool:
        """Whether a call changes more than it returns: it must be made again on the way back."""
        return any(each._forward_hooks for each in self._module.modules()) or self._look() != self._before

    def _look(self) -> list[dict[str, Any]]:
        return [
            {key: _mark(value) for key, value in vars(each).items() if key not in _OF_TORCH}
            for each in self._module.modules()
        ]


_OF_TORCH = frozenset(vars(torch.nn.Module()))


def _mark(value: Any) -> Any:
    """What is another one when the value is another, or has grown."""
    if isinstance(value, (bool, int, float, str)):
        return value
    return (id(value), len(value)) if isinstance(value, (list, dict, set)) else id(value)


def _identity(module: torch.nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _random_states() -> Any:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), cuda, host_states()


def _own(value: Any) -> Any:
    """What the script may change without changing the journal."""
    return value.copy() if hasattr(value, "copy") and not isinstance(value, (str, bytes)) else value


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
