"""`ronde.EmbeddingTable`: an `nn.Module` that looks up rows by id, without a bound on the ids."""

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
from ronde.server.exchange import Alone, Exchange
from ronde.server.table.admission import Admission
from ronde.server.table.eviction import Eviction
from ronde.server.table.initial import Initial
from ronde.server.table.on_disk import OnDisk
from ronde.server.table.optimizers import Adagrad, RowOptimizer
from ronde.server.table.table import Table, TableConfig

__all__ = ["EmbeddingTable"]

# The gradient of the anchor: so small that no norm of gradients notices it, even squared.
_TOKEN = 2.0**-66
# Ids of each look-up, and the gradients of their rows.
Gradients = list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class EmbeddingTable(nn.Module):
    """Rows of floats by int64 ids of any value, made when an id first has a gradient, updated sparsely.

    A look-up changes nothing: an id without a row has the values with which its row will begin.

    The script's own optimizer says when: the table has one parameter, `anchor`, and takes a step with its
    own `optimizer` whenever the optimizer that holds the anchor does. What happens to gradients in between
    happens to the table's too: accumulation over several backwards, `zero_grad`, a `GradScaler`'s unscaling
    and skipped steps, and the factor of `clip_grad_norm_`, whose norm is that of the other parameters. A
    table whose anchor no optimizer holds, or `anchor.requires_grad_(False)`, is frozen.

    Args:
        dim: floats of a row.
        optimizer: how rows are updated (`ronde.table.SGD`, `Adagrad`, `RowwiseAdagrad`, `Adam`, `FTRL`);
            without a learning rate of its own it has that of the anchor's parameter group, so schedulers
            are followed.
        init: first values of a row (`ronde.table.Zeros`, `Uniform`, `Normal`), made of seed and id alone;
            None is uniform in 1 / sqrt(dim).
        admit: which ids get a row (`ronde.table.AdmitAfter`, `AdmitWithProbability`, `AdmitByBloomFilter`);
            None is all. The others have their first values.
        evict: which rows are given up (`ronde.table.EvictByAge`, `EvictByNorm`, `EvictByFrequency`);
            None is none.
        pooling: of bags of ids, "sum" or "mean"; None where none are given.
        dtype: torch.float32 or torch.float64; None is the default type.
        seed: of first values and of draws by which ids are admitted.
        max_rows: rows at most; None is as many as the memory of this machine holds.
        half_rows: rows and gradients travel between ranks and parameter servers as float16, in half the bytes
            of float32, rounded; the servers keep them whole. Without servers it changes nothing.
        cold: `ronde.table.OnDisk(memory_rows=n)`: rows beyond n are on disk, those that were not asked for
            longest; None is all rows in memory. Numbers are the same.

    Raises:
        UsageError: one of these has a value that is not possible; numba is not installed; cold rows, and
            rocksdict is not.
    """

    #: How tables of several ranks are one; replaced under `ronde run`.
    exchange: ClassVar[Exchange] = Alone()

    #: A model that is cut into stages is told: none of them has the table for itself.
    looks_up_on_every_rank: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 - each says one thing of a table
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
            raise UsageError(f"EmbeddingTable(dtype={dtype}): rows are torch.float32 or torch.float64")
        if pooling not in (None, "sum", "mean"):
            raise UsageError(f'EmbeddingTable(pooling={pooling!r}): "sum" and "mean" are possible, or None')
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
        handle = register_optimizer_step_post_hook(_Follows(weakref.ref(self)))
        weakref.finalize(self, handle.remove)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        """Look up rows.

        Args:
            ids: int64, or int32, of any shape; with `offsets` of one axis.
            offsets: where each bag begins, as of `nn.EmbeddingBag`; int64 [bags].

        Returns:
            `[*ids.shape, dim]`; with offsets `[bags, dim]`.

        Raises:
            UsageError: ids are no whole numbers; offsets without `pooling`, or it without them.
        """
        if ids.dtype not in (torch.int64, torch.int32):
            raise UsageError(f"EmbeddingTable: ids are {ids.dtype}; int64 is needed (ids.long())")
        if (offsets is None) != (self.pooling is None):
            raise UsageError(
                'EmbeddingTable: bags need both `offsets` in the call and `pooling="sum"` or "mean"'
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
        """All rows, by rising id, with optimizer state and counters: part of `state_dict()`."""
        state = self.exchange.state(self.table)
        return {name: torch.from_numpy(np.asarray(value)) for name, value in state.items()}

    def set_extra_state(self, state: dict[str, torch.Tensor]) -> None:
        """Become what `get_extra_state` gave.

        Raises:
            UsageError: it is of a table with another dim, optimizer or filter.
        """
        self.exchange.load(self.table, {name: value.cpu().numpy() for name, value in state.items()})

    def gradients_of_ranks(self) -> list[Gradients]:
        """Gradients that each rank keeps for the next step: a checkpoint has them beside `anchor.grad`."""
        ranks, own = self.exchange.ranks(), self._pending.gradients
        return [own] if ranks is None else ranks.all_gather_object(own)

    def keep_gradients(self, of_ranks: list[Gradients]) -> None:
        """Take over what `gradients_of_ranks` gave, perhaps of another number of ranks."""
        ranks = self.exchange.ranks()
        rank, count = (0, 1) if ranks is None else (ranks.rank, ranks.world_size)
        if len(of_ranks) == count:
            self._pending.gradients = list(of_ranks[rank])
            return
        share = count / len(of_ranks)  # a step takes the mean over ranks
        every = [(ids, gradients * gradients.dtype.type(share)) for own in of_ranks for ids, gradients in own]
        self._pending.gradients = every if rank == 0 else [(ids[:0], each[:0]) for ids, each in every]

    def __getstate__(self) -> dict[str, Any]:
        """For pickling and `copy.deepcopy`: a copy has rows of its own."""
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
        """Keep gradients for the next step; what the anchor's gradient is to grow by."""
        grown, task = self.anchor.grad, current_graph_task_id()
        # The anchor grows when all look-ups of a backward have come; until then it tells of earlier ones.
        if task != self._pending.task and (grown is None or float(grown) == 0.0):
            self._pending.gradients.clear()  # `zero_grad` since the last backward
        self._pending.task = task
        self._pending.gradients.append((ids, gradients))
        if not np.isfinite(gradients.sum()):
            return math.nan
        return _TOKEN if len(self._pending.gradients) == 1 else 0.0

    def _step(self, lr: float) -> None:
        """Apply what was kept, times what became of the anchor's gradient since."""
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
    """Ids and their gradients since the last step; without a `__dict__`, as a `Table` is.

    Attributes:
        task: of autograd's engine, the last backward; -1 before the first.
    """

    __slots__ = ("gradients", "task")

    def __init__(self) -> None:
        self.gradients: Gradients = []
        self.task = -1


class _LookUp(torch.autograd.Function):
    """Rows by id; the gradient goes to the table, and a token of it to the anchor."""

    # An observed call is told: each row of ids gets its own, though they are read on the host.
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


class _Follows:
    """Called after each step of any optimizer: the table follows the one that holds its anchor."""

    def __init__(self, module: weakref.ref[EmbeddingTable]) -> None:
        self._module = module

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        module = self._module()
        if module is None:
            return
        for group in optimizer.param_groups:
            if any(each is module.anchor for each in group["params"]):
                module._step(float(group["lr"]))
