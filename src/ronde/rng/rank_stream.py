"""`rng=per-rank`: draws inside a model from a separate stream for each rank.

Streams are independent across samples. The script's generator is left to the script. On a CUDA device nothing
else uses the model's. On a CPU one generator serves the sampler and the model, and the sampler's order is the
single-device one (L1) only if that generator advances as if the model had drawn from it. So on a CPU every
draw is made twice: for this rank's rows from its own stream, and for the whole batch from the script's
generator, with the result dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ronde.rng.draws import Draw, SlicedDraws, UnknownDraw
from ronde.tensor.layout import Layout

__all__ = ["RankStream"]


class RankStream:
    """Generator state of this rank, active while a model runs.

    It follows from the script's seed and the rank, and begins anew when the script sets another seed.

    Args:
        note: function that takes a sentence for the user.
    """

    def __init__(self, rank: int, device: torch.device, note: Callable[[str], None]) -> None:
        self._rank = rank
        self._device = device
        self._note = note
        self._seed: int | None = None
        self._state = torch.empty(0)
        self._outside: torch.Tensor | None = None

    def _begin(self, seed: int) -> None:
        source = torch.Generator(device=self._device)
        source.manual_seed((seed * 1_000_003 + self._rank + 1) % 2**63)
        self._seed, self._state = seed, source.get_state()

    def _default(self) -> torch.Generator:
        if self._device.type != "cpu":
            module: Any = torch.get_device_module(self._device)
            module.init()
            return module.default_generators[self._device.index or 0]
        return torch.default_generator

    @property
    def watches(self) -> bool:
        """True when draws must be observed, to advance the script's generator."""
        return self._device.type == "cpu"

    @contextmanager
    def drawing(self, draws: Sequence[Draw], rows: Layout) -> Iterator[None]:
        """Make a model draw from this stream inside the `with` block.

        Args:
            draws: the draws recorded in an observed call.
            rows: the cut of the batch.
        """
        generator = self._default()
        self._outside = generator.get_state()
        if (seed := generator.initial_seed()) != self._seed:
            self._begin(seed)
        generator.set_state(self._state)
        twice = _DrawnTwice(self, draws, rows, self._rank) if self.watches else nullcontext()
        try:
            with twice:
                yield
        finally:
            self._state = generator.get_state()
            generator.set_state(self._outside)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Draw from the script's stream again, inside of `drawing`."""
        assert self._outside is not None
        generator = self._default()
        mine = generator.get_state()
        generator.set_state(self._outside)
        try:
            yield
        finally:
            self._outside = generator.get_state()
            generator.set_state(mine)

    def overlook(self, name: str) -> None:
        """Record a draw that was not seen in the observed call.

        Its size for the whole batch is unknown.
        """
        self._note(
            f"a model drew {name}, which it did not in its first call: with rng=per-rank the script's "
            "generator does not go on with it, so what the script shuffles and draws later is not "
            "one device's [R308]"
        )


class _DrawnTwice(SlicedDraws):
    """Mode that draws from this rank's stream, and advances the script's generator.

    The script's generator advances as for the whole batch.
    """

    def __init__(self, stream: RankStream, draws: Sequence[Draw], rows: Layout, rank: int) -> None:
        super().__init__(draws, rows, rank)
        self._stream = stream

    def resuming(self) -> Callable[[], Any]:
        """Return no mode: a checkpoint restores this rank's stream itself, and draws from that."""
        return nullcontext

    def _drawn(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        try:
            with self._stream.outside():
                self._go_on(func, name, args, kwargs)
        except UnknownDraw:
            self._stream.overlook(name)
        return result

    def _go_on(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        found = self._layout_of(name, args)
        if found is None:
            first = args[0].clone() if isinstance(args[0], torch.Tensor) else args[0]
            func(first, *args[1:], **kwargs)
        else:
            self._whole(func, name, args, kwargs, *found)
