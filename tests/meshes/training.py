"""Ten steps of a small language model: on one device, and on the ranks of a cell.

An exact cell has the numbers of one device within 1e-10, in float64. A cell with `precision` computes as its
reference does, the same precision on one rank; the two round in another order, so they may differ by as much
as that rounding has changed, three times over. Other inexact cells: see `compressed`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

import ronde
from codes import without_codes
from meshes.axes import Cell
from meshes.compressed import Buckets, Encoded, OfRows, has_own_momentum, reduced, replicas_of
from meshes.models import MODELS, VOCABULARY, WIDTH
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.runtime import compute_axis
from ronde.runtime.api import activate
from ronde.runtime.memory.meter import MemoryMeter
from ronde.shards import sharded_parameters
from ronde.testing.run_ranks import Rank

__all__ = ["TOLERANCE", "How", "Told", "compare", "on_ranks", "on_ranks_in_parts", "train"]

_STEPS, _ROWS, _TOKENS = 10, 17, 9
TOLERANCE = 1e-10
# Beside rounding itself: another order of sums rounds anew, at most about as much.
_ROUNDINGS = 3
# In this step the loss is so large that float16 has no gradient for it: nobody updates anything.
_SPIKE, _FACTOR = 4, 1e9


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What the script has read: of each step the loss and the norm of gradients, at the end its state.

    Attributes:
        notes: what the run says to the user at its end.
        encoded: what it has encoded of gradients.
        again: how often it has computed a part of a model again.
    """

    values: list[torch.Tensor]
    notes: list[str]
    encoded: Encoded | None
    again: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class How:
    """How the script trains.

    Attributes:
        by_step: by `ronde.Step`.
        layers: of the model; one at least for each chunk of each rank.
        with_table: rows of a `ronde.EmbeddingTable` are added to what the model looks up.
        spike: the loss of one step is `_FACTOR` times as large.
        skips: this step updates nothing, as float16 has it by itself.
        deferred: the model is built inside `ronde.deferred()`.
        backward: stands in the place of `loss.backward()`.
        tokens: of each row.
    """

    model: str
    dtype: torch.dtype = torch.float64
    momentum: float = 0.9
    by_step: bool = False
    layers: int = 2
    with_table: bool = False
    spike: bool = False
    skips: bool = False
    tokens: int = _TOKENS
    deferred: bool = False
    backward: Callable[[nn.Module, OfRows, int], None] | None = None

    @classmethod
    def of(cls, value: str, model: str) -> How:
        """As a cell of this value has it."""
        narrow = value.startswith("precision")
        dtype = torch.float32 if narrow else torch.float64
        return cls(
            model=model,
            dtype=dtype,
            by_step="schedule" in value,
            layers=4 if "interleaved" in value else 2,
            with_table=value.startswith("sparse"),
            spike=value == "precision=fp16",
            tokens=_TOKENS - value.startswith("sequence-parallel"),  # which cuts what ranks divide
        )


def train(how: How, on_model: Callable[[nn.Module], object] = lambda model: None) -> list[torch.Tensor]:
    """The script.

    Args:
        on_model: is given the model.
    """
    torch.manual_seed(1)
    with ronde.deferred() if how.deferred else nullcontext():
        net = MODELS[how.model](layers=how.layers)
    net.to(how.dtype)
    on_model(net)
    table = ronde.EmbeddingTable(WIDTH, dtype=how.dtype) if how.with_table else None
    anchors = [] if table is None else list(table.parameters())
    optimizer = torch.optim.SGD([*net.parameters(), *anchors], lr=0.1, momentum=how.momentum)
    told: list[torch.Tensor] = []
    factor = 1.0

    def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten()) * factor

    def clip(*_: object) -> None:
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        told.append(norm.detach().nan_to_num(0.0, 0.0, 0.0))

    if how.by_step:
        optimizer.register_step_pre_hook(clip)
    train_step = ronde.Step(net, optimizer, loss_of)
    draw = torch.Generator().manual_seed(2)
    for number in range(_STEPS):
        ids = torch.randint(0, VOCABULARY, (_ROWS, how.tokens + 1), generator=draw)
        given, wanted = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        spiked = how.spike and number == _SPIKE
        factor = _FACTOR if spiked else 1.0
        if how.by_step:
            told.append(train_step(given, target=wanted).clone())
            continue
        loss = loss_of(net(given) if table is None else net(given, table(given)), wanted)
        optimizer.zero_grad()
        if how.backward is None:
            loss.backward()
        else:
            how.backward(net, _of_rows(net, given, wanted), number)
        if not spiked:
            clip()
        if not (spiked and how.skips):
            optimizer.step()
        told.append(torch.tensor(loss.item() / factor))
    told += [value.clone() for value in net.state_dict().values()]
    if table is not None:
        with torch.no_grad():
            told.append(torch.tensor(table(torch.arange(VOCABULARY)).tolist(), dtype=how.dtype))
    state = optimizer.state_dict()["state"].values()
    return [
        *told,
        *(each["momentum_buffer"].clone() for each in state if each.get("momentum_buffer") is not None),
    ]


def _of_rows(net: nn.Module, given: torch.Tensor, wanted: torch.Tensor) -> OfRows:
    def of_rows(start: int, stop: int, factor: float) -> None:
        losses = F.cross_entropy(
            net(given[start:stop]).flatten(0, 1), wanted[start:stop].flatten(), reduction="sum"
        )
        (losses / wanted.numel() * factor).backward()

    return of_rows


def on_ranks_in_parts(rank: Rank, plan: str, value: str, model: str) -> Told:
    """As `on_ranks`, of a model that is cut as it is built, though it is small."""
    with mock.patch.object(sharded_parameters, "LEAST_BYTES", 1):
        return on_ranks(rank, plan, value, model, deferred=True)


def on_ranks(rank: Rank, plan: str, value: str, model: str, *, deferred: bool = False) -> Told:
    """What this rank reads under a plan."""
    counting, again = Patches(), list[None]()
    counting.set(MemoryMeter, "computed_again", lambda meter: again.append(None))
    with rank.session(plan) as session:
        activate(session)
        buckets = None if session.compression is None else Buckets(session)
        try:
            how = dataclasses.replace(How.of(value, model), deferred=deferred)

            def on_model(net: nn.Module) -> None:
                cuts = deferred and session.state.building is not None
                assert any(each.are_there for each in session.state.parameters) is cuts
                if buckets is not None:
                    buckets.know(net)

            values = train(how, on_model)
        finally:
            activate(None)
            counting.restore()
        notes = without_codes(session.summary().notes)
        return Told(values, notes, None if buckets is None else buckets.told, len(again))


def compare(cell: Cell, model: str, found: Sequence[Told]) -> None:
    """Every rank has read what the reference reads, and no rank has anything to say."""
    how = How.of(cell.value, model)
    for told in found:
        assert told.notes == [], told.notes
        assert "recompute" not in cell.value or told.again
        for got, first in zip(told.values, found[0].values, strict=True):
            assert torch.equal(got, first)
    if how.dtype is torch.float32:
        return _compare_rounded(cell.value, how, found[0].values)
    if found[0].encoded is not None:
        replicas, ranks = replicas_of(cell.plan, cell.ranks)
        encoded = [each.encoded for rank in ranks if (each := found[rank]).encoded is not None]
        momentum = 0.0 if has_own_momentum(cell.value) else how.momentum
        backward = reduced(cell.value, replicas, encoded, _ROWS)
        how = dataclasses.replace(how, momentum=momentum, backward=backward)
    wanted = train(how)
    assert len(found[0].values) == len(wanted)
    for got, want in zip(found[0].values, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)


def _compare_rounded(value: str, how: How, found: Sequence[torch.Tensor]) -> None:
    """The reference computes in the same precision on one rank."""
    patches = Patches()
    compute_axis.install_alone(Plan.parse(value), patches, lambda note: None)
    try:
        wanted = train(how)
    finally:
        patches.restore()
    rounding = _distance(wanted, train(dataclasses.replace(how, skips=how.spike)))
    assert 0 < rounding < 0.1
    assert _distance(found, wanted) <= _ROUNDINGS * rounding


def _distance(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """Of all numbers together, relative to their size."""
    one, other = (torch.cat([each.double().flatten() for each in values]) for values in (found, wanted))
    return float((one - other).norm() / other.norm())
