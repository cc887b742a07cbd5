"""`ronde run --publish`: versions of the model and its tables, made while the script trains.

A version is cut where a training step begins, when all of the step before is over: every optimizer has
stepped, tables too. Rank 0's clock decides when. Other ranks ask it only after as many steps as certainly
come before the next version, so that the cost of asking is negligible.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import monotonic, time  # bound here: the module's own are replaced for scripts
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ronde.launch.rank_config import RankConfig
from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL
from ronde.plan import Plan
from ronde.runtime.rows_on_rank_0 import rows_on_rank_0
from ronde.server.serving.manifest import FOLDER, TableEntry
from ronde.server.serving.publication import Publication, Version

if TYPE_CHECKING:
    from ronde.comm.process_group import Comm
    from ronde.server.embedding_table import EmbeddingTable
    from ronde.server.serving.program import Example

__all__ = ["Publishing"]

Around = Callable[[], AbstractContextManager[None]]

#: Largest number of consecutive versions with changes only; the next holds all rows.
_CHANGES_AT_MOST = 30


class Publishing:
    """Publishing on one rank; all ranks make the same calls.

    Args:
        config, plan: configuration and plan of this rank.
        comm: group of the other ranks; None without others.
        in_script: whether a call of a module is the script's.
        inside: context manager around ronde's own calls of modules.
        gathered: context manager in which a model's parameters are whole; a collective.
        around: context manager around work with files.
        say: callback for notes to the user at the end.
    """

    def __init__(
        self,
        config: RankConfig,
        plan: Plan,
        *,
        comm: Comm | None = None,
        in_script: Callable[[], bool] = lambda: True,
        inside: Around = nullcontext,
        gathered: Callable[[nn.Module], AbstractContextManager[object]] = nullcontext,
        around: Around = nullcontext,
        say: Callable[[str], Any] = lambda text: None,
    ) -> None:
        self._interval, self._comm, self._say = config.run.publish, comm, say
        self._in_script, self._inside, self._around = in_script, inside, around
        self._gathered = gathered
        self._main = threading.get_ident()
        many = comm is not None and comm.world_size > 1
        self._leads = comm is None or comm.rank == 0
        # Rank 0 fetches the rows that are on servers, and writes them all.
        self._spread = many and plan.state.sparse == "sharded" and not plan.state.server_count
        # Rank 0 finds other ranks' files on its own host only.
        self._brings = self._spread and config.place.hosts > 1
        writers = comm.world_size if comm is not None and self._spread and not self._brings else 1
        folder = Path(config.place.run_dir) / FOLDER
        rank = comm.rank if comm is not None else 0
        self._publication = Publication(
            folder, rank=rank, writers=writers, around=around, known=config.run.published
        )
        # By each module that the script calls with gradients, in the order of first calls.
        self._called: weakref.WeakKeyDictionary[nn.Module, Example] = weakref.WeakKeyDictionary()
        self._subject: _Subject | None = None
        self._no_program = ""
        self._calling = False
        self._steps = self._told = self._asked = 0
        self._ask_at = 1
        self._stepped = time()
        self._asked_at = self._begun = monotonic()
        self._version = 0
        self._changes = 0

    def install(self, patches: Patches) -> None:
        """Follow calls and steps."""
        patches.undo(register_optimizer_step_post_hook(self._after_step).remove)
        patches.layer(MODULE_CALL, "publishing", self._layer)

    def _layer(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if self._calling or threading.get_ident() != self._main or not self._in_script():
                return plain(module, *args, **kwargs)
            self._calling = True
            try:
                if torch.is_grad_enabled():
                    self._before(module, args, kwargs)
                return plain(module, *args, **kwargs)
            finally:
                self._calling = False

        return call

    def finish(self) -> None:
        """Publish the final version; called by all ranks. Returns when it is durable."""
        self._publication.wait()
        if self._steps > self._told and (self._subject is not None or self._called):
            self._publish(self._decided(0)[1:])
            self._publication.wait()
        if not self._leads:
            return
        if self._publication.trouble:
            self._say(f"the last version was not published: {self._publication.trouble} [R732]")
        elif not self._publication.durable:
            self._say("nothing was published: the script has trained no model [R731]")
        elif self._no_program:
            self._say(
                f"the model is published without a program, so a replica looks up rows but does not predict: "
                f"{self._no_program} [R734]"
            )

    def _after_step(self, *_: Any) -> None:
        if threading.get_ident() == self._main:
            self._steps += 1
            self._stepped = time()

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._subject is None and next(module.parameters(), None) is not None:
            from ronde.server.serving.program import Example

            self._called[module] = Example.of(args, kwargs)
        if self._steps <= self._told or self._steps < self._ask_at or not self._called:
            return
        wait, *decision = self._decided(self._steps_to_wait() if self._leads else 0)
        self._ask_at = self._steps + wait
        if not wait:
            self._publish(decision)

    def _steps_to_wait(self) -> int:
        """Return the least number of steps until a version is due; 0 if due."""
        now = monotonic()
        due = self._begun + self._interval - now
        a_step = (now - self._asked_at) / max(1, self._steps - self._asked)
        self._asked_at, self._asked = now, self._steps
        if due > 0:
            return max(1, min(int(due / a_step / 2), 1000))
        return 1 if self._publication.busy else 0

    def _decided(self, wait: int) -> list[int]:
        """Share rank 0's decision: steps to wait, next version, its base, and completeness."""
        done = self._publication
        number = self._version + 1 if self._version else done.begins_at
        # Changes are relative to a version that was published completely.
        follows = done.durable if done.durable == self._version else 0
        grown = done.delta_bytes > done.whole_bytes
        whole = not follows or grown or self._changes >= _CHANGES_AT_MOST
        mine = torch.tensor([wait, number, follows, int(whole)])
        if self._comm is None:
            return mine.tolist()
        return self._comm.broadcast(mine.to(self._comm.control_device)).tolist()

    def _publish(self, decision: Sequence[int]) -> None:
        number, follows, whole = decision
        if self._subject is None:
            self._subject = _Subject(self._called)
        subject = self._subject
        tables = subject.tables if self._leads or self._spread else {}
        told = {name: each.exchange.changes(each.table, number, follows) for name, each in tables.items()}
        lost = None in told.values()
        if self._comm is not None:
            lost = self._comm.votes([lost]) != [0]
        follows, whole = (0, 1) if lost else (follows, whole)
        model = subject.model()
        with self._gathered(model) if model is not None else nullcontext():
            program = self._program(subject) if number == self._publication.begins_at else b""
            dense = subject.dense(self._inside, write=self._leads)
        delta = {name: rows for name, rows in told.items() if rows is not None} if follows else {}
        every = {name: each.exchange.rows(each.table) for name, each in tables.items()} if whole else {}
        if self._brings and self._comm is not None:
            delta, every = rows_on_rank_0(self._comm, delta), rows_on_rank_0(self._comm, every)
        version = Version(
            version=number,
            step=self._steps,
            time=self._stepped,
            tables={name: _entry(table) for name, table in tables.items()},
            follows=follows or None,
            delta=delta,
            whole=every,
            dense=dense,
            program=program,
            no_program=self._no_program,
        )
        self._told, self._version = self._steps, number
        self._begun = monotonic()
        self._changes = 0 if whole else self._changes + 1
        if self._leads or (self._spread and not self._brings):
            with self._around():
                self._publication.begin(version)

    def _program(self, subject: _Subject) -> bytes:
        """Export the model's computation; b"" (with a note) if impossible."""
        if not self._leads:
            return b""
        from ronde.server.serving.program import NoProgram, export

        model = subject.model()
        if model is None or subject.example is None:
            self._no_program = "the script calls no model but tables"
            return b""
        try:
            with self._around(), self._inside():
                return export(model, subject.example)
        except NoProgram as reason:
            self._no_program = f"torch.export cannot export {type(model).__name__}: {reason}"
            return b""


class _Subject:
    """Objects to publish: the called model with most parameters, and all tables.

    Args:
        called: modules that the script called, with the arguments of their last calls.
    """

    def __init__(self, called: weakref.WeakKeyDictionary[nn.Module, Example]) -> None:
        from ronde.server.embedding_table import EmbeddingTable

        modules = {_given(module): example for module, example in called.items()}
        models = [module for module in modules if not isinstance(module, EmbeddingTable)]
        chosen = max(models, key=lambda module: len(list(module.parameters())), default=None)
        self.model: Callable[[], nn.Module | None] = weakref.ref(chosen) if chosen is not None else _none
        self.example = None if chosen is None else modules[chosen]
        self.tables: dict[str, EmbeddingTable] = {}
        for module in [*filter(None, [chosen]), *modules]:
            self._add_tables(module)

    def _add_tables(self, module: nn.Module) -> None:
        from ronde.server.serving.program import tables_of

        for name, table in tables_of(module).items():
            if not any(table is each for each in self.tables.values()):
                others = sum(each.partition("-")[0] == name for each in self.tables)
                self.tables[f"{name}-{others + 1}" if others else name] = table

    def dense(self, inside: Around, *, write: bool) -> bytes:
        """Encode the model's parameters and buffers as a safetensors file. A collective.

        b"" if not to be written.
        """
        from safetensors.torch import save

        from ronde.server.serving.program import without_tables

        model = self.model()
        if model is None:
            return save({}) if write else b""
        with without_tables(model):
            state = model.state_dict()
        if not write:
            return b""
        with inside():
            return save(
                {
                    name: value.detach().to("cpu", copy=True).contiguous()
                    for name, value in state.items()
                    if isinstance(value, torch.Tensor)
                }
            )


def _given(module: nn.Module) -> nn.Module:
    """Return the module that was given to the compiler, or `module` itself."""
    inner = module._modules.get("_orig_mod")
    return module if inner is None else inner


def _none() -> None:
    return None


def _entry(table: EmbeddingTable) -> TableEntry:
    config = table.table.config
    return TableEntry.of(config.dim, config.dtype, config.first_values, config.seed)
