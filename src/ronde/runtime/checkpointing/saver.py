"""Saving of checkpoints from a running script, and the end of a saved run."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter  # bound here: the module's own are replaced for scripts
from time import time as clock
from typing import Any

import torch

from ronde.checkpoint.cadence import Cadence
from ronde.checkpoint.journal import Mismatch
from ronde.checkpoint.schedule import Schedule
from ronde.checkpoint.script_state import CapturedState, held_by_script
from ronde.checkpoint.state import HostCopies, State, Unchanged, take
from ronde.checkpoint.store import Store
from ronde.comm.process_group import Comm
from ronde.errors import RondeError
from ronde.files import ScriptFiles
from ronde.launch.rank_config import RankConfig
from ronde.rng.device_states import device_states
from ronde.rng.random_state import host_states
from ronde.runtime.checkpointing.own_models import OwnModels
from ronde.runtime.checkpointing.rank_state import RankState, gathered
from ronde.runtime.checkpointing.replay_output import ReplayOutput, flush_output
from ronde.runtime.checkpointing.scope import Scope
from ronde.tensor.global_tensor import materialize
from ronde.trace.checkpoint_manifest import CheckpointManifest
from ronde.trace.events import write_event

__all__ = ["Saver"]


class Saver:
    """One rank's part in saving; all ranks make the same calls.

    Args:
        store: store to which rank 0 writes; None on the others.
        own: see `Checkpoints`.
        described: returns a manifest without step and boundary, and the new part of the journal as a block of
            its file.

    Attributes:
        steps: number of optimizer steps so far.
        saved: the step of the newest checkpoint, or of the one that was resumed.
    """

    def __init__(
        self,
        config: RankConfig,
        comm: Comm,
        files: ScriptFiles,
        scope: Scope,
        output: ReplayOutput,
        *,
        store: Store | None,
        own: RankState | OwnModels | None,
        described: Callable[[], tuple[CheckpointManifest, bytes]],
    ) -> None:
        self._config, self._comm, self._files, self._scope, self._output = config, comm, files, scope, output
        self._store, self._described = store, described
        models = self._models = own if isinstance(own, OwnModels) else None
        self._own = None if isinstance(own, OwnModels) else own
        self._leads = comm.rank == 0
        self._schedule = Schedule(Cadence(*config.run.checkpoint_every), self._sum, leads=self._leads)
        self._history = files.remember()
        self._copies = HostCopies() if self._leads or models is not None else None
        # Journals of all ranks, if each has its own state.
        self._of_ranks = HostCopies() if self._leads else None
        self._unchanged: Unchanged | None = None
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._writing: threading.Thread | None = None
        self._trouble = ""
        self._ending = False
        self.steps = self.saved = self._looked_at = 0
        # By optimizer, its number in the order in which the script has made them.
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._made = itertools.count()
        self._cuts = models and models.cuts(comm, self._schedule, self._standing, self._end_unsaved)

    def begin(self, frame: Any) -> None:
        """Begin before the first call of a model, in a script with this frame."""
        self._unchanged = Unchanged(held_by_script(frame))

    def add_optimizer(self, optimizer: Any) -> None:
        """Register an optimizer, or its new parameters."""
        if optimizer not in self._numbers:
            self._numbers[optimizer] = next(self._made)

    def step(self, optimizer: Any) -> None:
        """Count a step of an optimizer."""
        self._history.trained = True
        self.steps += 1
        self._stepped.add(optimizer)

    def resume(self, files: Any) -> None:
        """Take over the history of files of an earlier run."""
        self._history.resume(files)

    def at_boundary(self, boundary: str, frame: Any) -> None:
        """Save, or end the run, if due. Called where a step of the script begins."""
        cuts = self._cuts
        begins, self._looked_at = self.steps != self._looked_at, self.steps
        if self._models is not None and not begins:
            if torch.is_grad_enabled():
                return  # inside a step: a graph cannot be saved, nor may parameters in it change
            with self._scope.entry():  # this rank evaluates, and others should not wait for it
                self._models.poll()
        if cuts is None:
            if self._schedule.is_due(self.steps, self.saved, ending=self._ending):
                self._save(boundary, frame)
            if self._schedule.is_ending:
                self._end()
        elif cuts.is_due():
            comes = cuts.come()
            if comes:
                self._save(boundary, frame)
            if self._schedule.is_ending:
                self._end() if comes else self._end_unsaved()

    def go_on(self, states: Iterable[tuple[int, Any]]) -> None:
        """Restore each rank's own state for each optimizer.

        Raises:
            Mismatch: the script has made other optimizers.
        """
        made = {number: optimizer for optimizer, number in self._numbers.items()}
        for number, state in states:
            if number not in made:
                raise Mismatch(f"it no longer holds optimizer {number + 1} [R514]")
            assert self._models is not None
            self._models.go_on(made[number], state)
        if self._models is not None:
            self._models.begin([made[number] for number in sorted(made)])

    def finish(self) -> str:
        """Return when the last checkpoint is durable, with a note for the user."""
        if self._cuts is not None:
            self._cuts.end()
        if self._writing is not None:
            self._writing.join()
        if self._trouble:
            return f"the last checkpoint was not written: {self._trouble} [R509]"
        if self._leads and self.saved == 0:
            return (
                f"no checkpoint was made: the script came to no place where one is due "
                f"({self.steps} optimizer steps) [R510]"
            )
        return ""

    def end_soon(self) -> None:
        """Save where the next step begins, and die of SIGTERM then."""
        self._ending = True

    def _standing(self) -> tuple[int, int, bool]:
        return self.steps, self.saved, self._ending

    def _end_unsaved(self, meets: bool = True) -> None:
        told = (
            "nothing was saved: a rank has come to the end of its script; the checkpoint before stays [R507]"
        )
        self._end(told, meets=meets)

    def _end(self, told: str = "", *, meets: bool = True) -> None:
        """End the process by the signal, after the checkpoint is durable."""
        if self._writing is not None:
            self._writing.join()
        told = told or (self._trouble and f"nothing was saved: {self._trouble} [R508]")
        self._output.tell(
            told or f"saved at step {self.steps}, as the run is to end; go on by --resume [R508]"
        )
        flush_output()
        if meets:
            self._comm.barrier()
        os.kill(os.getpid(), signal.SIGTERM)

    def _sum(self, numbers: torch.Tensor) -> torch.Tensor:
        # An agreement inside a step of an optimizer is part of that step's entry.
        with nullcontext() if self._scope.inside else self._scope.entry():
            return self._comm.all_reduce(numbers.to(self._comm.control_device))

    def _save(self, boundary: str, frame: Any) -> None:
        if self._writing is not None:
            self._writing.join()  # the state that is being written uses the memory for copies
        assert self._unchanged is not None
        begun = perf_counter()
        with self._scope.entry(), self._files.unmediated(), torch.no_grad():
            held = held_by_script(frame)
            self._check_finds_optimizers(held)
            models = self._models
            if models is not None:
                models.stand()
                held = models.kept(held)
            with_rows = models is None or models.reads_servers
            state = take(held, materialize, self._unchanged, self._copies, with_rows=with_rows)
            own = [] if self._own is None else gathered(self._comm, self._own.state_dict(), self._of_ranks)
            self.saved = self.steps
            if self._copies is None:
                return
            state["random"] = _random_states()
            manifest, content = self._described()
            if models is not None:
                state, content = self._of_all_ranks(models, held, state, content, boundary)
            if not self._leads:
                return
            assert self._of_ranks is not None
            flush_output()  # a replay does not print the output up to here again
            state["own"] = own
            state["files"], state["sizes"] = self._history.events(), self._history.sizes()
            manifest = dataclasses.replace(
                manifest,
                step=self.steps,
                boundary=boundary,
                held_up=perf_counter() - begun,
                state_bytes=self._copies.nbytes + self._of_ranks.nbytes,
                time=clock(),
            )
            self._writing = threading.Thread(
                target=self._write, args=(manifest, state, content), name="ronde-checkpoint", daemon=True
            )
            self._writing.start()

    def _of_all_ranks(
        self, models: OwnModels, held: CapturedState, state: State, content: bytes, boundary: str
    ) -> tuple[State, bytes]:
        """Gather on rank 0 one combined model, and each rank's state and journal."""
        numbered = [(self._numbers[each], own) for each, own in models.states()]
        state |= {"training": numbered, "step": self.steps, "boundary": boundary}
        states = gathered(self._comm, state, self._of_ranks)
        blocks = self._comm.all_gather_object(content)
        if not self._leads:
            return state, content
        return {**models.one_model(states, held), "ranks": states}, b"".join(blocks)

    def _check_finds_optimizers(self, held: CapturedState) -> None:
        """Refuse a checkpoint without the trained objects."""
        # By their groups: a wrapper of an optimizer, such as accelerate's, shares them with it.
        found = {id(optimizer.param_groups) for optimizer in held.optimizers.values()}
        stepped, self._stepped = list(self._stepped), weakref.WeakSet()
        if stepped and not any(id(optimizer.param_groups) in found for optimizer in stepped):
            kind = type(stepped[0]).__name__
            raise RondeError(
                f"--checkpoint: {kind}, which has stepped, is in no variable of the script and of the "
                "objects that its variables lead to; keep it in one, or leave out --checkpoint [R517]"
            )

    def _write(self, manifest: CheckpointManifest, state: State, content: bytes) -> None:
        assert self._store is not None
        try:
            with self._files.unmediated():
                begun = perf_counter()
                self._store.write(manifest, state, content)
                write_event(
                    Path(self._config.place.run_dir),
                    "checkpoint",
                    f"step {manifest.step} is saved",
                    rank=0,
                    step=manifest.step,
                    held_up=manifest.held_up,
                    written=perf_counter() - begun,
                    nbytes=manifest.state_bytes,
                    folder=str(Path(self._config.run.checkpoint).absolute()),
                )
            self._trouble = ""
        except OSError as error:
            self._trouble = f"{self._config.run.checkpoint}: {error.strerror or error}"
        except Exception as error:
            self._trouble = f"{type(error).__name__}: {error}"


def _random_states() -> Any:
    return torch.get_rng_state(), device_states(), host_states()
