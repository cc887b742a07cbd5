"""Compression of a plan: the exchange of each bucket, and the optimizer's part."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ronde.comm.compressors.cast import Cast
from ronde.comm.compressors.codec import Codec
from ronde.comm.compressors.min_max import MinMax
from ronde.comm.compressors.one_bit import OneBit
from ronde.comm.compressors.sparse import RandomK, TopK
from ronde.comm.compressors.two_bit import TwoBit
from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.plan.communication import Communication
from ronde.sync.bucket_memory import GradientMemory
from ronde.sync.compression.adaptive_sum import AdaptiveSum
from ronde.sync.compression.averaged_momentum import AveragedMomentum, FirstMoment
from ronde.sync.compression.bucket import CompressedBucket
from ronde.sync.compression.chunked import Chunked
from ronde.sync.compression.corrected import Corrected, Momentum, momentum_of
from ronde.sync.compression.exchange import GradientExchange
from ronde.sync.compression.factored import Factored
from ronde.sync.compression.gathered import Gathered
from ronde.sync.compression.residuals import ResidualStore
from ronde.sync.compression.summed import Summed
from ronde.sync.leaf import Leaf

__all__ = ["GradientCompression", "density_at"]

_DENSITY = 0.001
_LOW_RANK = 2
_ADAM_WARM_UP = 100
_STAGES = 4
_DTYPES = (torch.float32, torch.float64)
_BY_TENSOR = ("topk", "randomk", "onebit", "twobit")
_NO_MOMENTUM: Momentum = (0.0, 0.0, False)
_T = TypeVar("_T")


def density_at(step: int, density: float, warm_up: int) -> float:
    """Return the share of elements that are sent in this step.

    It is 1/4, 1/16, 1/64, 1/256 in quarters of the warm-up. Source: Lin et al., ICLR 2018: sparsity 75,
    93.75, 98.4375, 99.6, then 99.9 %.
    """
    if step >= warm_up:
        return density
    return max(density, 0.25 ** (1 + _STAGES * step // warm_up))


class GradientCompression:
    """Compression of a plan's gradients.

    Args:
        comm: the reducer's group.
        travels: the plan's communication axis; one that changes gradients (its `as_it_is` is False).
        warm_up: steps of the plan's warm-up; None for the default.
        parameters: function that returns a map: from the id of each leaf that is a block of a parameter to
            the parameter's id.
    """

    def __init__(
        self,
        comm: Comm,
        travels: Communication,
        warm_up: int | None,
        parameters: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self._comm = comm
        self.parameters = parameters
        self._travels = travels
        self._warm_up = warm_up or (_ADAM_WARM_UP if travels.compressed == "momentum" else 0)
        self._held = ResidualStore()
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # Step counts from a checkpoint, for optimizers that are made later.
        self._loaded: list[int] = []
        self._gone_bytes = 0
        self._of: weakref.WeakSet[_Source] = weakref.WeakSet()
        # Momentum of each group during a step, by optimizer.
        self._momenta: dict[int, list[float]] = {}
        self._messages = self._plain_bytes = 0

    def bucket(
        self, leaves: Sequence[Leaf], optimizer: Any, memory: GradientMemory
    ) -> CompressedBucket | None:
        """Create a bucket for an optimizer's leaves; None for an uncompressed dtype."""
        if leaves[0].dtype not in _DTYPES:
            return None
        if optimizer is not None:
            self._know(optimizer)
        source = _Source(self, leaves, None if optimizer is None else weakref.ref(optimizer))
        self._of.add(source)
        return CompressedBucket(leaves, memory, source.next)

    def _know(self, optimizer: Any) -> None:
        if optimizer not in self._steps:
            self._steps[optimizer] = self._loaded.pop(0) if self._loaded else 0

    def steps_of(self, optimizer: Any) -> int:
        """Return the number of steps of an optimizer."""
        return 0 if optimizer is None else self._steps.get(optimizer, 0)

    def is_warming(self, optimizer: Any) -> bool:
        """Return whether the next step is in the warm-up, which sends gradients uncompressed."""
        return self._travels.compressor != "topk" and self.steps_of(optimizer) < self._warm_up

    @property
    def freezes(self) -> bool:
        """True if Adam's second moment is frozen after the warm-up."""
        return self._travels.compressed == "momentum"

    @property
    def corrects(self) -> bool:
        """True if the compressor applies momentum instead of the optimizer."""
        return self._travels.error_feedback and self._travels.compressor in _BY_TENSOR

    def before_step(self, optimizer: Any) -> None:
        """Disable the optimizer's momentum, which the compressor has applied."""
        if self.corrects and type(optimizer) is torch.optim.SGD:
            groups = optimizer.param_groups
            self._momenta[id(optimizer)] = [group["momentum"] for group in groups]
            for group in groups:
                group["momentum"] = 0

    def after_step(self, optimizer: Any) -> None:
        for group, momentum in zip(
            optimizer.param_groups, self._momenta.pop(id(optimizer), ()), strict=False
        ):
            group["momentum"] = momentum
        self._know(optimizer)
        self._steps[optimizer] += 1

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals, and the step counts of optimizers in order."""
        return {"held": self._held.state_dict(), "steps": list(self._steps.values())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the same rank's `state_dict`; optimizers are made in the same order."""
        self._held.load_state_dict(state["held"])
        known = list(self._steps)
        for optimizer, steps in zip(known, state["steps"], strict=False):
            self._steps[optimizer] = steps
        self._loaded = list(state["steps"][len(known) :])

    def load_states(self, states: Sequence[Mapping[str, Any]], rank: int, ranks: int) -> None:
        """Load the `state_dict` of each rank, perhaps of another number of ranks.

        A gradient is the mean of the ranks' messages. So each rank of another number takes the mean of all
        residuals: together they hold back as much of the gradient as before.
        """
        if len(states) == ranks:
            self.load_state_dict(states[rank])
            return
        first = states[0]
        held = {
            # Factors are equal on all ranks, bitwise.
            name: value
            if name.startswith("factor.")
            else torch.stack([state["held"][name] for state in states]).mean(0)
            for name, value in first["held"].items()
        }
        self.load_state_dict({**first, "held": held})

    def account(self) -> str:
        """Return a sentence for the summary on bytes sent; empty before the first message."""
        if not self._messages:
            return ""
        sent = sum(exchange.sent_bytes for source in self._of for exchange in source.exchanges)
        sent += self._gone_bytes
        plain = self._plain_bytes * 2 * (self._comm.world_size - 1) / self._comm.world_size
        return (
            f"{_megabytes(sent)} sent by this rank, where gradients as they are would have been "
            f"{_megabytes(plain)} ({plain / max(sent, 1):.3g} times as much)"
        )

    def count(self, numel: int, itemsize: int) -> None:
        """Count a message of `numel` elements before it is sent."""
        self._messages += 1
        self._plain_bytes += numel * itemsize

    def forget(self, sent_bytes: int) -> None:
        """Keep the byte count of a bucket that is gone."""
        self._gone_bytes += sent_bytes

    def plain(self, leaves: Sequence[Leaf]) -> GradientExchange:
        """Create the uncompressed exchange."""
        travels, ranks = self._travels, self._comm.world_size
        before = travels.predivide or 1.0
        after = 1.0 if travels.reduction == "sum" else before / ranks
        return Summed(self._comm, leaves, before=before, after=after)

    def encoded(self, leaves: Sequence[Leaf], source: _Source) -> GradientExchange:
        """Create the exchange that the plan asks for."""
        travels, comm = self._travels, self._comm
        held = self._held if travels.error_feedback else None
        match travels.compressor:
            case "none":
                return AdaptiveSum(comm, leaves) if travels.reduction == "adasum" else self.plain(leaves)
            case "fp16" | "bf16" | "int8":
                codec = self._by_chunks()
                if travels.compressed == "momentum":
                    return AveragedMomentum(comm, leaves, codec, source.moments)
                return Chunked(comm, leaves, held, codec)
            case "powersgd":
                return Factored(comm, leaves, held, self._held, travels.low_rank or _LOW_RANK)
            case "topk" | "randomk" | "onebit" | "twobit":
                if held is not None:
                    return Corrected(comm, leaves, held, source.codecs, source.momenta)
                return Gathered(comm, leaves, None, source.codecs)

    def _by_chunks(self) -> Codec:
        if self._travels.compressor == "int8":
            return MinMax()
        return Cast(torch.float16 if self._travels.compressor == "fp16" else torch.bfloat16)

    def codec(self, leaf: Leaf, step: int, message: int) -> Codec:
        """Return the codec of one leaf in this step.

        Args:
            message: number of the message between two steps; random codecs draw other elements for each.
        """
        travels = self._travels
        density = travels.density or _DENSITY
        match travels.compressor:
            case "topk":
                return TopK(density_at(step, density, self._warm_up))
            case "randomk":
                key = self._held.number(leaf) << 48 | step << 16 | message
                return RandomK(density, key=key, unbiased=not travels.error_feedback)
            case "onebit":
                return OneBit()
            case "twobit":
                return TwoBit(travels.threshold)
            case "none" | "fp16" | "bf16" | "int8" | "powersgd":
                raise AssertionError(travels.compressor)  # these encode whole buckets


class _Source:
    """Optimizer settings for the exchanges of one bucket."""

    def __init__(self, compression: GradientCompression, leaves: Sequence[Leaf], optimizer: Any) -> None:
        self._compression = compression
        self._leaves = list(leaves)
        self._optimizer: Callable[[], Any] = optimizer or (lambda: None)
        self._plain: GradientExchange | None = None
        self._encoded: GradientExchange | None = None
        self._last = -1
        self._message = 0
        self._numel = sum(leaf.shape.numel() for leaf in leaves)

    def __del__(self) -> None:
        self._compression.forget(sum(exchange.sent_bytes for exchange in self.exchanges))

    @property
    def exchanges(self) -> list[GradientExchange]:
        return [each for each in (self._plain, self._encoded) if each is not None]

    def next(self) -> tuple[GradientExchange, bool]:
        """Return the exchange of a new backward, and whether a step came before."""
        optimizer = self._optimizer()
        steps = self._compression.steps_of(optimizer)
        fresh, self._last = steps != self._last or optimizer is None, steps
        self._message = 1 if fresh and optimizer is not None else self._message + 1
        self._compression.count(self._numel, self._leaves[0].dtype.itemsize)
        if self._compression.is_warming(optimizer):
            self._plain = self._plain or self._compression.plain(self._leaves)
            return self._plain, fresh
        if self._encoded is None:
            self._encoded = self._compression.encoded(self._leaves, self)
        return self._encoded, fresh

    def codecs(self) -> list[Codec]:
        steps = self._compression.steps_of(self._optimizer())
        return [self._compression.codec(leaf, steps, self._message) for leaf in self._leaves]

    def momenta(self) -> list[Momentum]:
        if type(self._optimizer()) is not torch.optim.SGD:
            return [_NO_MOMENTUM] * len(self._leaves)
        return self._asked(momentum_of, _NO_MOMENTUM)

    def moments(self) -> list[FirstMoment]:
        optimizer = self._optimizer()
        if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
            name = "no optimizer" if optimizer is None else type(optimizer).__name__
            raise UsageError(
                f"compressed=momentum averages the first moment of torch.optim.Adam or AdamW, and these "
                f"parameters have {name}; use one of the two, or compressed=gradient [R294]"
            )
        betas = self._asked(lambda group: float(group["betas"][0]), 0.9)
        state = optimizer.state
        return [
            (beta, state[tensor].get("exp_avg") if (tensor := leaf.tensor) in state else None)
            for beta, leaf in zip(betas, self._leaves, strict=True)
        ]

    def _asked(self, of: Callable[[dict[str, Any]], _T], default: _T) -> list[_T]:
        """Return a setting of each leaf's parameter group."""
        groups = self._optimizer().param_groups
        known = {id(tensor): of(group) for group in groups for tensor in group["params"]}
        parameters = self._compression.parameters()
        keys = [id(leaf.tensor) for leaf in self._leaves]
        return [known.get(parameters.get(key, key), default) for key in keys]


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.3g} MB"
