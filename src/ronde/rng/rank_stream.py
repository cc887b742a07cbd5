"""`rng=per-rank`: draws inside a model from a stream of this rank's own, independent across samples.

The script's generator is left to the script. On a CUDA device nothing else uses the model's. On a CPU one
generator serves the sampler and the model, and the sampler's order is the single-device one (L1) only if that
generator goes on as if the model had drawn from it. So every draw is made twice there: for this rank's rows
from its own stream, and for the whole batch from the script's, to be thrown away.
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
    """A generator state of this rank's own, swapped in while a model runs on its rows.

    It follows from the script's seed and the rank, and begins anew when the script chooses another seed.

    Args:
        note: takes a sentence for the user.
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
        if self._device.type == "cuda":
            torch.cuda.init()
            return torch.cuda.default_generators[self._device.index or 0]
        return torch.default_generator

    @property
    def watches(self) -> bool:
        """Whether every draw is looked at, because the script's generator must go on with it."""
        return self._device.type == "cpu"

    @contextmanager
    def drawing(self, draws: Sequence[Draw], rows: Layout) -> Iterator[None]:
        """Inside, a model draws from this stream.

        Args:
            draws: what it draws, as learnt in an observed call.
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
        """Inside `drawing`: draw from the script's stream after all."""
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
        """A draw that no observed call saw: what one device would draw for the whole batch is not known."""
        self._note(
            f"a model drew {name}, which it did not in its first call: with rng=per-rank the script's "
            "generator does not go on with it, so what the script shuffles and draws later is not "
            "one device's"
        )


class _DrawnTwice(SlicedDraws):
    """Draws for this rank's rows from its stream; the script's generator goes on as for the whole batch."""

    def __init__(self, stream: RankStream, draws: Sequence[Draw], rows: Layout, rank: int) -> None:
        super().__init__(draws, rows, rank)
        self._stream = stream

    def resuming(self) -> Callable[[], Any]:
        """A checkpoint has saved the state of this rank's stream, and draws again from that alone."""
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
