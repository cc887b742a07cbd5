"""`ronde.EmbeddingTable`, an `nn.Module` that looks up rows by arbitrary int64 ids."""

from __future__ import annotations

import math
import weakref
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_post_hook

from ronde.errors import UsageError
from ronde.patching.torch_internals import current_graph_task_id
from ronde.server.table.admission import Admission
from ronde.server.table.config import TableConfig
from ronde.server.table.eviction import Eviction
from ronde.server.table.initial import Initial
from ronde.server.table.on_disk import OnDisk
from ronde.server.table.optimizers import Adagrad, RowOptimizer
from ronde.server.table.table import Table
from ronde.server.table_backend import LocalTables, TableBackend

__all__ = ["EmbeddingTable"]

# The gradient of the anchor: too small to change a norm of gradients, even squared.
_TOKEN = 2.0**-66
# Ids of each look-up, and the gradients of their rows.
Gradients = list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class EmbeddingTable(nn.Module):
    """An embedding table with unbounded int64 ids, dynamic rows and sparse updates.

    A row is created when its id first has a gradient. A look-up changes nothing: an id without a row gets the
    values with which its row will begin.

    The script's own optimizer decides when the table steps: the table has one parameter, `anchor`, and
    applies its own `optimizer` whenever the optimizer that holds the anchor steps. Whatever happens to
    gradients in between also happens to the table's: accumulation over several backwards, `zero_grad`,
    unscaling and skipped steps of a `GradScaler`, and the factor of `clip_grad_norm_` (its norm is that of
    the other parameters). A table is frozen if no optimizer holds its anchor, or after
    `anchor.requires_grad_(False)`.

    Args:
        dim: floats of a row.
        optimizer: the update rule of rows (`ronde.table.SGD`, `Adagrad`, `RowwiseAdagrad`, `Adam`, `FTRL`);
            without a learning rate of its own it uses that of the anchor's parameter group, so it follows
            schedulers.
        init: first values of a row (`ronde.table.Zeros`, `Uniform`, `Normal`), a function of seed and id
            alone; None: uniform within 1 / sqrt(dim).
        admit: the rule by which ids get a row (`ronde.table.AdmitAfter`, `AdmitWithProbability`,
            `AdmitByBloomFilter`); None: all do. The other ids keep their first values.
        evict: the rule by which rows are deleted (`ronde.table.EvictByAge`, `EvictByNorm`,
            `EvictByFrequency`); None: rows stay.
        pooling: reduction of bags of ids, "sum" or "mean"; None if the input has no bags.
        dtype: torch.float32 or torch.float64; None: the default dtype.
        seed: seed of first values and of random admission.
        max_rows: rows at most; None: as many as fit in this machine's memory.
        half_rows: whether rows and gradients are sent between ranks and parameter servers as float16,
            rounded; servers store full precision. No effect without servers.
        cold: `ronde.table.OnDisk(memory_rows=n)`: rows beyond the n most recently used are on disk; None: all
            rows are in memory. Results are the same.

    Raises:
        UsageError: an argument is invalid; numba is not installed; `cold` is given and rocksdict is not
            installed.
    """

    #: How the ranks share tables; replaced under `ronde run`.
    exchange: ClassVar[TableBackend] = LocalTables()

    #: Read when a model is cut into stages: every rank takes part in a look-up.
    looks_up_on_every_rank: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 - options of a table
        self,
        dim: int,
        *,
        optimizer: RowOptimizer | None = None,
        init: Initial | None = None,
        admit: Admission | None = None,
        evict: Eviction | None = None,
        pooling: str | None = None,
        dtype: torch.dtype | None = None,
        seed: int = 0,
        max_rows: int | None = None,
        half_rows: bool = False,
        cold: OnDisk | None = None,
    ) -> None:
        super().__init__()
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in _DTYPES:
            raise UsageError(f"EmbeddingTable(dtype={dtype}): choose torch.float32 or torch.float64 [R461]")
        if pooling not in (None, "sum", "mean"):
            raise UsageError(f'EmbeddingTable(pooling={pooling!r}): give "sum", "mean" or None [R461]')
        config = TableConfig(
            dim=dim,
            optimizer=Adagrad() if optimizer is None else optimizer,
            initial=init,
            admit=admit,
            evict=evict,
            dtype=_DTYPES[dtype],
            seed=seed,
            max_rows=max_rows,
            half_rows=half_rows,
            cold=cold,
        )
        self.dim, self.pooling = dim, pooling
        self.anchor = nn.Parameter(torch.zeros(1, dtype=dtype))
        self._hold(Table(config))

    def _hold(self, table: Table) -> None:
        self.table = table
        # Now, as loops cannot be compiled while a first call is observed.
        self.exchange.compile(table)
        self._pending = _Pending()
        _follow(self)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        """Look up rows by id, and pool them if the table has `pooling`.

        Args:
            ids: int64 or int32 of any shape; 1-d with `offsets`.
            offsets: start of each bag, as for `nn.EmbeddingBag`; int64 [bags].

        Returns:
            `[*ids.shape, dim]`; with offsets `[bags, dim]`.

        Raises:
            UsageError: ids are not integers; only one of `offsets` and `pooling` is given.
        """
        if ids.dtype not in (torch.int64, torch.int32):
            raise UsageError(f"EmbeddingTable: ids are {ids.dtype}; int64 is needed (ids.long()) [R462]")
        if (offsets is None) != (self.pooling is None):
            raise UsageError(
                'EmbeddingTable: bags need both `offsets` in the call and `pooling="sum"` or "mean" [R462]'
            )
        rows: torch.Tensor = _LookUp.apply(self.anchor, ids, self)  # pyright: ignore[reportAssignmentType]
        return rows if offsets is None else self._pooled(rows, offsets)

    def _pooled(self, rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        ends = torch.cat([offsets[1:], offsets.new_tensor([len(rows)])])
        sizes = (ends - offsets).to(rows.device)
        bags = torch.repeat_interleave(torch.arange(len(offsets), device=rows.device), sizes)
        sums = rows.new_zeros(len(offsets), self.dim).index_add(0, bags, rows)
        return sums if self.pooling == "sum" else sums / sizes.clamp(min=1).unsqueeze(1)

    def __len__(self) -> int:
        return self.exchange.count(self.table)

    def extra_repr(self) -> str:
        return f"{self.dim}, {self.table.config.optimizer}"

    def get_extra_state(self) -> dict[str, torch.Tensor]:
        """Return all rows by rising id, with optimizer state and counters; part of `state_dict()`."""
        state = self.exchange.state(self.table)
        return {name: torch.from_numpy(np.asarray(value)) for name, value in state.items()}

    def set_extra_state(self, state: dict[str, torch.Tensor]) -> None:
        """Load the state that `get_extra_state` returned.

        Raises:
            UsageError: the state belongs to a table with another dim, optimizer or filter.
        """
        self.exchange.load(self.table, {name: value.cpu().numpy() for name, value in state.items()})

    def gradients_of_ranks(self) -> list[Gradients]:
        """Return each rank's gradients for the next step; checkpoints store them with `anchor.grad`."""
        ranks, own = self.exchange.ranks(), self._pending.gradients
        return [own] if ranks is None else ranks.all_gather_object(own)

    def keep_gradients(self, of_ranks: list[Gradients]) -> None:
        """Restore pending gradients from `gradients_of_ranks`, also for another number of ranks."""
        ranks = self.exchange.ranks()
        rank, count = (0, 1) if ranks is None else (ranks.rank, ranks.world_size)
        if len(of_ranks) == count:
            self._pending.gradients = list(of_ranks[rank])
            return
        share = count / len(of_ranks)  # a step takes the mean over ranks
        every = [(ids, gradients * gradients.dtype.type(share)) for own in of_ranks for ids, gradients in own]
        self._pending.gradients = every if rank == 0 else [(ids[:0], each[:0]) for ids, each in every]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling and `copy.deepcopy`; a copy has its own rows."""
        own = self.__dict__.copy()
        del own["_pending"]
        own["table"] = (self.table.config, self.exchange.state(self.table))
        return own

    def __setstate__(self, state: dict[str, Any]) -> None:
        config, rows = state.pop("table")
        super().__setstate__(state)
        table = Table(config)
        self.exchange.load(table, rows)
        self._hold(table)

    def _keep(self, ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any]) -> float:
        """Store gradients for the next step, and return the increment of the anchor's gradient."""
        grown, task = self.anchor.grad, current_graph_task_id()
        # The anchor grows once all look-ups of a backward are done; until then it reflects earlier backwards.
        if task != self._pending.task and (grown is None or float(grown) == 0.0):
            self._pending.gradients.clear()  # `zero_grad` since the last backward
        self._pending.task = task
        self._pending.gradients.append((ids, gradients))
        if not np.isfinite(gradients.sum()):
            return math.nan
        return _TOKEN if len(self._pending.gradients) == 1 else 0.0

    def _step(self, lr: float) -> None:
        """Apply the stored gradients, scaled as the anchor's gradient was scaled since."""
        if not self._pending.gradients or self.anchor.grad is None:
            return
        factor = float(self.anchor.grad) / _TOKEN
        ids = np.concatenate([each for each, _ in self._pending.gradients])
        gradients = np.concatenate([each for _, each in self._pending.gradients])
        self._pending.gradients.clear()
        if factor != 0.0:
            scaled = gradients if factor == 1.0 else gradients * gradients.dtype.type(factor)
            self.exchange.update(self.table, ids, scaled, lr)


class _Pending:
    """Ids and their gradients since the last step. It has no `__dict__`, like `Table`.

    Attributes:
        task: id of the last backward in autograd's engine; -1 before the first.
    """

    __slots__ = ("gradients", "task")

    def __init__(self) -> None:
        self.gradients: Gradients = []
        self.task = -1


class _LookUp(torch.autograd.Function):
    """Look-up by id; backward stores the rows' gradients and marks the anchor."""

    # Tells an observed call that each row of ids gets its own output row, though ids are read on the host.
    looks_up_rows = True

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> torch.Tensor:
        anchor, ids, module = arguments
        flat = ids.detach().reshape(-1).to("cpu", torch.int64).numpy()
        rows = torch.from_numpy(module.exchange.look_up(module.table, flat))
        ctx.module, ctx.ids, ctx.anchored = module, flat, anchor.device
        return rows.to(anchor.device).view(*ids.shape, module.dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        flat = gradients[0].detach().reshape(len(ctx.ids), -1)
        kept = flat.to("cpu", ctx.module.anchor.dtype).contiguous().numpy()
        grown = ctx.module._keep(ctx.ids.copy(), kept.copy())
        return torch.full((1,), grown, dtype=ctx.module.anchor.dtype, device=ctx.anchored), None, None


# Hooks of tables, of which freed ones are removed when another table is made: torch iterates over hooks, and
# a table may be freed meanwhile.
_FOLLOWING: list[tuple[weakref.ref[EmbeddingTable], Any]] = []


def _follow(module: EmbeddingTable) -> None:
    """Step a table after each step of the optimizer that holds its anchor."""
    for each in [each for each in _FOLLOWING if each[0]() is None]:
        each[1].remove()
        _FOLLOWING.remove(each)
    reference = weakref.ref(module)
    _FOLLOWING.append((reference, register_optimizer_step_post_hook(_Follows(reference))))


class _Follows:
    """A hook after optimizer steps: steps the table if that optimizer holds its anchor."""

    def __init__(self, module: weakref.ref[EmbeddingTable]) -> None:
        self._module = module

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        module = self._module()
        if module is None:
            return
        for group in optimizer.param_groups:
            if any(each is module.anchor for each in group["params"]):
                module._step(float(group["lr"]))
