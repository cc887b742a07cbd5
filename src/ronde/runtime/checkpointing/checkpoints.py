"""`ronde run --checkpoint`: a run is saved at a step, and resumed by replay.

The script contains no word of it. A checkpoint is cut where a training step begins, when all of the step
before is over. To resume, the script runs again from its beginning. All computation (calls of models,
backward, steps of optimizers) is skipped; values that the script reads come from the journal; its output and
its files are discarded. Where the journal ends, tensors, optimizers and generators get the values of the
checkpoint, and the script goes on.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter  # bound here: the module's own is replaced for scripts
from typing import Any

import torch

from ronde.batches.slices import slice_of
from ronde.checkpoint.generators import put_generators
from ronde.checkpoint.host_reads import HostReads
from ronde.checkpoint.journal import Journal, Mismatch
from ronde.checkpoint.remote_checkpoints import RemoteCheckpoints, is_url
from ronde.checkpoint.same_script import changes_since, script_digest
from ronde.checkpoint.script_state import held_by_script
from ronde.checkpoint.state import State, put_back
from ronde.checkpoint.store import Store, newest
from ronde.comm.process_group import Comm
from ronde.errors import RondeError, UsageError
from ronde.files import ScriptFiles
from ronde.launch.rank_config import RankConfig
from ronde.patching.patches import Patches
from ronde.patching.stacks import ADD_PARAM_GROUP, BACKWARD, GRAD, MODULE_CALL, NEXT_BATCH
from ronde.plan import Plan
from ronde.runtime.checkpointing.all_read import check_all_read
from ronde.runtime.checkpointing.leaves import Leaves
from ronde.runtime.checkpointing.own_models import OwnModels
from ronde.runtime.checkpointing.rank_state import RankState, has_place
from ronde.runtime.checkpointing.recorder import OperationRecorder
from ronde.runtime.checkpointing.replay_output import ReplayOutput
from ronde.runtime.checkpointing.replayer import Replayer
from ronde.runtime.checkpointing.saver import Saver
from ronde.runtime.checkpointing.scope import Scope
from ronde.tensor.global_tensor import GlobalTensor, materialize
from ronde.tensor.tree import leaves
from ronde.trace.checkpoint_manifest import CheckpointManifest, checkpoints_in

__all__ = ["Checkpoints"]


class Checkpoints:
    """Saving and resuming on one rank; all ranks make the same calls.

    Args:
        in_script: whether the code that runs is the script's, on its main thread.
        has_gradient: whether a leaf has a gradient, perhaps in parts, without gathering it.
        own: state that differs between ranks, or averages ranks that train by themselves; None where nothing
            differs between ranks.
        say: callback for notes to the user at the end.
        on_resumed: callback with the step at which the script has been resumed.

    Attributes:
        by_another: whether the script is replayed with the journal of another rank or plan; batches are then
            cut as they were there.
        goes_on_alone: whether ranks trained by themselves, and this one continues from its own state.

    Raises:
        UsageError: the folder has no checkpoint to resume from, or cannot be written.
    """

    def __init__(
        self,
        config: RankConfig,
        *,
        comm: Comm,
        in_script: Callable[[], bool],
        files: ScriptFiles,
        has_gradient: Callable[[torch.Tensor], bool],
        own: RankState | OwnModels | None,
        say: Callable[[str], Any],
        on_resumed: Callable[[int], object] = lambda step: None,
    ) -> None:
        self._on_resumed = on_resumed
        self._config, self._say = config, say
        self._models = own if isinstance(own, OwnModels) else None
        self._own = None if isinstance(own, OwnModels) else own
        self._in_script, self._files = in_script, files
        self._output = ReplayOutput(config, leads=comm.rank == 0)
        self._reads = HostReads(self._read, self._shaped)
        for name in ("numpy", "tolist"):
            self._reads.hear_through(getattr(GlobalTensor, name), name)
        self._scope, self._leaves = Scope(self._reads), Leaves()
        self._replayer: Replayer | None = None
        self.by_another = self.goes_on_alone = False
        self._open(comm, files, has_gradient)
        self._runs_script = False
        self._calls = 0
        self._wrapped: set[type] = set()
        self._replay_begun = perf_counter()

    def _open(self, comm: Comm, files: ScriptFiles, has_gradient: Callable[[torch.Tensor], bool]) -> None:
        """Read the checkpoint to resume on all ranks, and make recorder and saver."""
        config, leads = self._config, comm.rank == 0
        folder = Path(config.place.checkpoints or config.run.checkpoint)
        mirror = RemoteCheckpoints(config.run.checkpoint) if is_url(config.run.checkpoint) else None
        if mirror is not None:
            folder = Path(config.place.run_dir) / "checkpoints"
            if config.run.resume and config.place.local_rank == 0:
                mirror.fetch(folder)
            comm.barrier()
        digest = script_digest(config.run.script, module=config.run.module)
        own_rank = 0 if self._models is None else config.place.rank
        self._journal, journal_bytes, read = Journal(rank=own_rank), 0, -1
        if config.run.resume and any(checkpoints_in(folder)):
            manifest, state, entries = newest(folder, self._output.tell, self._owner)
            journal_bytes, read = manifest.journal_bytes, manifest.step
            alone = self.goes_on_alone = self._is_of_each(manifest, state)
            self.by_another = not alone and (_apart(manifest.plan) or self._models is not None)
            self._journal = Journal(entries, rank=own_rank, others=not alone and own_rank > 0)
            self._tell_changes(manifest, digest)
            self._check_own(manifest, state)
            self._replayer = self._begun_replay(manifest, state)
        # All ranks have read before any writes.
        check_all_read(config.run.checkpoint, comm.all_gather_object((read, platform.node())))
        keep = config.run.checkpoint_keep
        store = Store(folder, keep=keep, journal_bytes=journal_bytes, mirror=mirror) if leads else None
        self._recorder = OperationRecorder(self._journal, self._scope, self._leaves, has_gradient)
        self._saver = Saver(
            config, comm, files, self._scope, self._output,
            store=store, own=self._models or self._own, described=partial(self._described, digest),
        )  # fmt: skip
        if self._replayer is not None:
            self._saver.resume(self._replayer.state["files"])

    def _is_of_each(self, manifest: CheckpointManifest, state: State) -> bool:
        """Return whether each rank continues from its own state."""
        config = self._config
        return "ranks" in state and (manifest.plan, manifest.ranks) == (
            config.run.plan,
            config.place.world_size,
        )

    def _owner(self, manifest: CheckpointManifest, state: State) -> int:
        """Return the rank of the journal that this rank replays."""
        return self._config.place.rank if self._is_of_each(manifest, state) else 0

    def _begun_replay(self, manifest: CheckpointManifest, state: State) -> Replayer:
        """Start a replay towards this rank's own state, or a checkpoint's one model."""
        ranks = state.pop("ranks", None)
        if self.goes_on_alone:
            state = {**state, **ranks[self._config.place.rank]}
            manifest = dataclasses.replace(manifest, step=state["step"], boundary=state["boundary"])
        elif ranks is not None:
            config, many = self._config, self._config.place.world_size
            self._output.tell(
                f"{manifest.ranks} ranks of {manifest.plan} had different numbers of steps; {many} of "
                f"{config.run.plan} continue from rank 0's step, with the state of servers [R506]"
                if Plan.parse(manifest.plan).is_local
                else (
                    f"{manifest.ranks} ranks of {manifest.plan} had a model each; {many} of "
                    f"{config.run.plan} continue with the mean [R506]"
                )
            )
        return Replayer(self._journal, self._scope, self._leaves, manifest, state)

    def _check_own(self, manifest: CheckpointManifest, state: State) -> None:
        """Check that the state of each rank has a place in this run."""
        if not any(isinstance(each, torch.Tensor) for each in leaves(state.get("own", ()))):
            return
        config, ranks = self._config, self._config.place.world_size
        if self._own is None:
            self._output.tell(
                f"the residuals of the compressor under {manifest.plan} are dropped: {config.run.plan} has "
                "no residuals [R283]"
            )
        elif not has_place(manifest.plan, manifest.ranks, config.run.plan, ranks):
            raise UsageError(
                f"the checkpoint in {config.run.checkpoint} has compressor residuals of {manifest.ranks} "
                f"ranks under {manifest.plan}, and {ranks} ranks of {config.run.plan} have other parts of "
                "the model; go on with the same plan and as many ranks, or without a compressor [R284]"
            )

    def _described(self, digest: str) -> tuple[CheckpointManifest, bytes]:
        """Return a manifest without step and boundary, and the journal's new block."""
        config = self._config
        entries, content = self._recorder.fresh()
        manifest = CheckpointManifest(
            step=0,
            entries=entries,
            journal_bytes=0,
            boundary="",
            seed=config.run.seed,
            plan=config.run.plan,
            ranks=config.place.world_size,
            script=config.run.script,
            arguments=tuple(config.run.arguments),
            script_digest=digest,
        )
        return manifest, content

    @property
    def _way(self) -> OperationRecorder | Replayer:
        return self._recorder if self._replayer is None else self._replayer

    def install(self, patches: Patches) -> None:
        """Install the outermost layers around all computation."""

        def around_call(plain: Callable[..., Any]) -> Callable[..., Any]:
            def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
                if self._is_part():
                    return plain(module, *args, **kwargs)
                return self._call(plain, module, args, kwargs)

            return call

        def around_next(plain: Callable[..., Any]) -> Callable[..., Any]:
            def next_batch(iterator: Any) -> Any:
                if self._is_part():
                    return plain(iterator)
                ends_here = self._models is not None or not self._calls
                if self._replayer is not None or (ends_here and self._saver.steps > self._saver.saved):
                    self._at_boundary("next")
                with self._scope.entry():
                    batch = plain(iterator)
                    return (
                        batch if self._replayer is None else self._as_it_was(iterator, batch, self._replayer)
                    )

            return next_batch

        def around_backward(plain: Callable[..., Any]) -> Callable[..., Any]:
            def backward(*args: Any, **kwargs: Any) -> None:
                if self._is_part():
                    return plain(*args, **kwargs)
                self._begin_if_new()
                return self._way.backward(plain, args, kwargs)

            return backward

        def around_grad(plain: Callable[..., Any]) -> Callable[..., Any]:
            def grad(*args: Any, **kwargs: Any) -> Any:
                if self._is_part():
                    return plain(*args, **kwargs)
                return self._computed("grad", "grad", lambda: plain(*args, **kwargs))

            return grad

        def around_add(plain: Callable[..., Any]) -> Callable[..., Any]:
            def add_param_group(optimizer: Any, param_group: Any) -> None:
                plain(optimizer, param_group)
                self._leaves.add_optimizer(optimizer)
                self._saver.add_optimizer(optimizer)
                self._wrap_step(patches, type(optimizer))

            return add_param_group

        plain_sleep: Callable[[float], None] = time.sleep

        def sleep(seconds: float, /) -> None:
            # the replay has passed the place of the checkpoint
            if self._replayer is None or not self._in_script():
                plain_sleep(seconds)

        patches.set(time, "sleep", sleep)
        patches.layer(MODULE_CALL, "checkpoints", around_call)
        patches.layer(NEXT_BATCH, "checkpoints", around_next)
        patches.layer(BACKWARD, "checkpoints", around_backward)
        patches.layer(GRAD, "checkpoints", around_grad)
        patches.layer(ADD_PARAM_GROUP, "checkpoints", around_add)
        patches.undo(self._reads.end)

    def _wrap_step(self, patches: Patches, kind: Any) -> None:
        if kind in self._wrapped or not hasattr(kind, "step"):
            return
        self._wrapped.add(kind)
        plain = kind.step

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_part():
                return plain(optimizer, *args, **kwargs)
            self._begin_if_new()
            self._saver.step(optimizer)
            return self._way.step(plain, optimizer, args, kwargs)

        step.hooked = True  # pyright: ignore[reportFunctionMemberAccess] - torch would put hooks around it
        step.__wrapped__ = plain  # pyright: ignore[reportFunctionMemberAccess]
        patches.set(kind, "step", step)

    def hear_through(self, wrapper: Callable[..., Any], name: str) -> None:
        """Forward to `HostReads.hear_through`."""
        self._reads.hear_through(wrapper, name)

    def attempt(self) -> Callable[[], None]:
        """Begin work that may be repeated; the returned function discards its journal entries."""
        count = len(self._journal)
        return lambda: self._journal.forget_since(count)

    def begin(self) -> None:
        """Begin the script."""
        self._runs_script = True
        if self._replayer is not None:
            self._output.silence()
        elif self._config.run.resume:
            self._output.say_begin()
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_termination)

    def finish(self) -> None:
        """Finish the script on all ranks; return when the last checkpoint is durable.

        Raises:
            RondeError: the script has ended before the place of the checkpoint.
        """
        self._runs_script = False
        if self._replayer is not None:
            raise self._mismatch("it has ended before the place of the checkpoint [R514]")
        said = self._saver.finish()
        if said:
            self._say(said)

    def abandon(self) -> None:
        """Restore output after an exception of the script: the user is to read it."""
        self._output.speak_again()

    def _on_termination(self, *_: Any) -> None:
        """Save where the next step begins, then end. A second signal does not wait."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not self._scope.begun or self._replayer is not None:
            self._output.tell(
                "ended by SIGTERM before its first step, so nothing was saved [R507]"
                if self._replayer is None
                else "ended by SIGTERM while it was resumed; the checkpoint is unchanged [R507]"
            )
            os.kill(os.getpid(), signal.SIGTERM)
        self._saver.end_soon()

    # Operations of the script.

    def _is_part(self) -> bool:
        """Return whether the operation is ronde's own, or inside an entry of the journal."""
        return self._scope.inside or not self._in_script()

    def _call(self, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        self._begin_if_new()
        if torch.is_grad_enabled():
            self._calls += 1
            saver = self._saver
            if not self._scope.in_steps and (saver.steps > saver.saved or self._replayer is not None):
                self._at_boundary("call")
        self._leaves.add_given((*args, *kwargs.values()))
        return self._way.call(plain, module, args, kwargs)

    def _computed(self, kind: str, name: str, act: Callable[[], Any]) -> Any:
        self._begin_if_new()
        return self._way.computed(kind, name, act)

    def _read(self, name: str, act: Callable[[], Any]) -> Any:
        return act() if self._is_part() else self._way.read(name, act)

    def _shaped(self, name: str, act: Callable[[], Any]) -> Any:
        return act() if self._is_part() else self._computed("shape", name, act)

    def agreed(self, name: str, act: Callable[[], Any]) -> Any:
        """Record or recall a value that ranks agree upon: a time, a seed."""
        return self._way.agreed(name, act) if self._runs_script and not self._scope.inside else act()

    def _as_it_was(self, iterator: Any, batch: Any, replayer: Replayer) -> Any:
        """Cut a replayed batch as it was cut when recorded."""
        cuts = getattr(iterator, "_ronde_cuts", torch.is_grad_enabled())
        if not self.by_another or not cuts or not _apart(replayer.manifest.plan):
            return batch
        return slice_of(batch, 0, replayer.manifest.ranks)

    def _begin_if_new(self) -> None:
        if not self._scope.begun:
            self._saver.begin(sys._getframe(1))
            self._scope.begin()

    def _at_boundary(self, boundary: str) -> None:
        """Handle the beginning of a step of the script."""
        replayer = self._replayer
        if replayer is None:
            self._saver.at_boundary(boundary, sys._getframe(1))
        elif replayer.has_come(boundary, self._saver.steps):
            self._resume(sys._getframe(1), replayer)

    # The replay ends here.

    def _resume(self, frame: Any, replayer: Replayer) -> None:
        state, step = replayer.state, replayer.manifest.step
        with self._scope.entry(), self._files.unmediated(), torch.no_grad():
            try:
                put_back(held_by_script(frame), state, materialize)
                if self._own is not None and state.get("own"):
                    self._own.load_states(
                        state["own"], self._config.place.rank, self._config.place.world_size
                    )
                if self._models is not None:
                    self._saver.go_on(state["training"] if self.goes_on_alone else ())
            except Mismatch as mismatch:
                raise self._mismatch(str(mismatch)) from None
            put_generators(state["random"])
        self._journal.begin_recording()
        self._replayer = None
        self.by_another = False
        self._files.end_replay(state["sizes"])
        self._output.say_position()
        self._output.speak_again()
        self._saver.saved = self._saver.steps
        self._leaves.forget_made()
        self._on_resumed(step)
        took = perf_counter() - self._replay_begun
        self._output.tell(f"resumed at step {step}, {took:.1f} s after the start [R504]")

    def _mismatch(self, how: str) -> RondeError:
        self._output.speak_again()
        return RondeError(
            f"the script cannot be brought back to the checkpoint in {self._config.run.checkpoint}: {how}. "
            "The script must be the same, and take the same path; see docs/guides/checkpoints.md [R514]"
        )

    def _tell_changes(self, manifest: CheckpointManifest, digest: str) -> None:
        changes = changes_since(manifest, digest, self._config.run.arguments)
        if changes:
            self._output.tell(
                f"since the checkpoint of step {manifest.step} the script has changed: "
                f"{' and '.join(changes)}; the steps before it are not done again [R505]"
            )


def _apart(plan: str) -> bool:
    """Return whether the ranks of a plan train by themselves, each on its slice."""
    return Plan.parse(plan).in_local_view
