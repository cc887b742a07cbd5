"""topk and randomk: some elements travel unchanged, all others not at all."""

from __future__ import annotations

import torch

from ronde.comm.compressors.codec import joined, padded, split

__all__ = ["RandomK", "TopK", "count_of", "largest"]

# Below this size a selection of all elements takes no longer than a sample of them.
_SMALL = 1 << 16
_SAMPLE = 1 << 15


def count_of(density: float, numel: int) -> int:
    """Return the number of elements that travel: `density` of all, at least one if any."""
    return min(numel, max(1, round(density * numel)))


def largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the `count` elements of largest magnitude: int64 [count], unordered.

    A sample gives a bound that about twice as many elements pass as needed, so that most elements are only
    compared with one number (DGC's hierarchical selection, but exact: with too few candidates all elements
    are selected from).
    """
    magnitudes = values.abs()
    numel = values.numel()
    if numel <= _SMALL or 16 * count > numel:
        return torch.topk(magnitudes, count, sorted=False).indices
    sample = magnitudes[:: numel // _SAMPLE]
    wanted = min(len(sample), max(4, round(2 * count * len(sample) / numel)))
    least = torch.topk(sample, wanted, sorted=True).values[-1]
    candidates = magnitudes.ge(least).nonzero().view(-1)
    if len(candidates) < count:
        return torch.topk(magnitudes, count, sorted=False).indices
    return candidates[torch.topk(magnitudes[candidates], count, sorted=False).indices]


class TopK:
    """Codec of the `density` n elements of largest magnitude, with their places.

    Source: Aji and Heafield, EMNLP 2017; Lin et al., "Deep Gradient Compression", ICLR 2018. The message has
    int32 places, then as many elements in their dtype.
    """

    def __init__(self, density: float) -> None:
        self._density = density

    def size(self, numel: int, dtype: torch.dtype) -> int:
        count = count_of(self._density, numel)
        return padded(4 * count) + padded(count * dtype.itemsize)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        places = largest(values, count_of(self._density, values.numel()))
        return joined(places.int(), values[places])

    def places(self, message: torch.Tensor, numel: int) -> torch.Tensor:
        """Return the places among `numel` elements that a message has: int32."""
        return split(message, (count_of(self._density, numel), torch.int32))[0]

    def add(self, message: torch.Tensor, into: torch.Tensor, sign: int = 1) -> None:
        count = count_of(self._density, into.numel())
        places, values = split(message, (count, torch.int32), (count, into.dtype))
        into.index_add_(0, places, values, alpha=sign)


class RandomK:
    """Codec of `density` n elements at random places, the same on all ranks.

    Places are drawn anew for each message, from `key`, so that values alone travel. Without error feedback
    they are multiplied by n / k, so that the expected value is the gradient; with it they are sent unchanged.

    Source: Wangni et al., NeurIPS 2018; Stich et al., NeurIPS 2018; BytePS's `randomk`.

    Args:
        key: seed, another for each tensor and step, the same on all ranks.
    """

    def __init__(self, density: float, *, key: int, unbiased: bool) -> None:
        self._density, self._key, self._unbiased = density, key, unbiased

    def size(self, numel: int, dtype: torch.dtype) -> int:
        return padded(count_of(self._density, numel) * dtype.itemsize)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        chosen = values[self._places(values.numel(), values.device)]
        return joined(chosen * (values.numel() / max(1, len(chosen))) if self._unbiased else chosen)

    def add(self, message: torch.Tensor, into: torch.Tensor, sign: int = 1) -> None:
        (values,) = split(message, (count_of(self._density, into.numel()), into.dtype))
        into.index_add_(0, self._places(into.numel(), into.device), values, alpha=sign)

    def _places(self, numel: int, device: torch.device) -> torch.Tensor:
        """Return distinct places: one at random in each of k equal stretches."""
        count = count_of(self._density, numel)
        generator = torch.Generator().manual_seed(self._key)
        bounds = torch.arange(count + 1, dtype=torch.int64) * numel // max(1, count)
        draws = torch.rand(count, generator=generator, dtype=torch.float64)
        widths = bounds[1:] - bounds[:-1]
        return (bounds[:-1] + (draws * widths).long()).to(device)
